"""What can be wrong with text, tokens and chats that a caller sends. Each message is one sentence for that caller.

TextError (a ValueError)
├── InvalidTextError           not valid Unicode
├── UnknownTokenError          a token id that the model does not have
├── InvalidChatError           messages that the chat template refuses
├── ChatTemplateMissingError   a base model, which has no chat template
└── InvalidStopStringError     an empty stop string, or too much of them
"""

from __future__ import annotations


class TextError(ValueError):
    """Base of all errors of this package; all are the caller's to mend."""


class InvalidTextError(TextError):
    """The text is not valid Unicode, so no bytes can be given to a tokenizer."""

    def __init__(self, *, position: int) -> None:
        super().__init__(f"the text is not valid Unicode: lone surrogate at character {position}")
        self.position = position


class UnknownTokenError(TextError):
    """A token id outside the model's vocabulary. ``position``: where it stands among those given."""

    def __init__(self, *, token_id: int, vocab_size: int, position: int) -> None:
        super().__init__(f"token id {token_id} is not in the model's vocabulary, which has ids 0 to {vocab_size - 1}")
        self.token_id = token_id
        self.vocab_size = vocab_size
        self.position = position


class InvalidChatError(TextError):
    """The messages do not make a chat that the model's template accepts."""


class ChatTemplateMissingError(TextError):
    """The model is a base model."""

    def __init__(self) -> None:
        super().__init__(
            "this model has no chat template, since it is a base model: send the prompt as text for it to continue"
        )


class InvalidStopStringError(TextError):
    """A stop string that is empty, or more of them than a request may have."""
