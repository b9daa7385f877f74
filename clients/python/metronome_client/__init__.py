"""A client of Metronome: generate on an executor, look into its books, ask a scheduler for a plan.

    with InferenceClient("127.0.0.1:50052") as client:
        for event in client.generate("Once upon a time", GenerateOptions(max_tokens=64)):
            match event:
                case Delta(text=text):
                    print(text, end="", flush=True)

`AsyncInferenceClient` has the same methods for asyncio. Each failure of a call is a `MetronomeError`.
"""

from __future__ import annotations

from metronome_client.aio import AsyncInferenceClient
from metronome_client.errors import MetronomeError
from metronome_client.events import Delta, Event, Finished, FinishReason, Started, TokenLogprobs, Usage, Waiting
from metronome_client.inference import InferenceClient
from metronome_client.recording import RecordingError, TruncatedRecordingError, read_recording
from metronome_client.requests import ChatMessage, GenerateOptions, Prompt
from metronome_client.scheduler import SchedulerClient

__all__ = [
    "AsyncInferenceClient",
    "ChatMessage",
    "Delta",
    "Event",
    "FinishReason",
    "Finished",
    "GenerateOptions",
    "InferenceClient",
    "MetronomeError",
    "Prompt",
    "RecordingError",
    "SchedulerClient",
    "Started",
    "TokenLogprobs",
    "TruncatedRecordingError",
    "Usage",
    "Waiting",
    "read_recording",
]
