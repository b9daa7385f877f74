"""How likely the tokens of an answer were, as a table under it: one token a line, with the likeliest ones there."""

from __future__ import annotations

from collections import defaultdict

from rich.table import Table
from rich.text import Text

from metronome_cli.consoles import table_console
from metronome_client import Delta, InferenceClient, TokenLogprobs


class ToldLogprobs:
    """Gathers what an answer tells of its tokens, and of its prompt's that have log-probabilities."""

    def __init__(self) -> None:
        self._prompt: list[TokenLogprobs] = []
        self._answers: defaultdict[int, list[tuple[int, TokenLogprobs]]] = defaultdict(list)

    def hear(self, delta: Delta) -> None:
        """Note what a delta tells."""
        self._prompt += [told for told in delta.prompt_logprobs if told is not None]
        if delta.logprobs:
            self._answers[delta.index] += zip(delta.token_ids, delta.logprobs, strict=True)

    def show(self, client: InferenceClient, prompt: str) -> None:
        """Print it, if there is anything. Asks the executor how each token is spelled. Raises `MetronomeError`."""
        spelling = _Spelling(client)
        if self._prompt:
            _print("prompt", list(zip(client.tokenize(prompt)[1:], self._prompt, strict=False)), spelling)
        for index, tokens in sorted(self._answers.items()):
            _print("answer" if len(self._answers) == 1 else f"answer {index + 1}", tokens, spelling)


class _Spelling:
    """The text of single tokens, each asked for once."""

    def __init__(self, client: InferenceClient) -> None:
        self._client = client
        self._known: dict[int, str] = {}

    def of(self, token_id: int) -> str:
        """Give a token as a string literal, or its id where it spells nothing."""
        if token_id not in self._known:
            text = self._client.detokenize([token_id])
            self._known[token_id] = repr(text) if text else f"<{token_id}>"
        return self._known[token_id]


def _print(title: str, tokens: list[tuple[int, TokenLogprobs]], spelling: _Spelling) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("token")
    table.add_column("log p", justify="right")
    table.add_column("likeliest")
    for token_id, told in tokens:
        likeliest = zip(told.top_token_ids, told.top_logprobs, strict=True)
        others = "  ".join(f"{spelling.of(other)} {logprob:.2f}" for other, logprob in likeliest)
        table.add_row(Text(spelling.of(token_id)), f"{told.logprob:.2f}", Text(others))
    console = table_console()
    console.print(f"\nlog-probabilities of the {title}")
    console.print(table)
