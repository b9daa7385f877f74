"""The answers of one call: which of their events go out, and under which index.

Where as many are computed as are given, each goes out as it comes. Where the best of more are given, nothing goes out
until all are complete: then the most likely come, best first, each as one delta. How likely an answer is, is the mean
of its tokens' log-probabilities, so that a long one is not behind for its length (as in OpenAI's interface).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Protocol

from executor_service.convert.generate import Call, delta, finished
from executor_service.engine.request import FinishedEvent, TokenLogprobs, TokensEvent
from metronome.inference.v1 import inference_pb2 as pb


class Answers(Protocol):
    def hear(self, event: TokensEvent | FinishedEvent) -> Iterator[pb.GenerateResponse]:
        """What an event of the engine lets go out."""

    @property
    def are_complete(self) -> bool: ...


def answers_of(call: Call) -> Answers:
    return EachAsItComes(call.ids) if call.num_given == len(call.requests) else BestOfAll(call)


class EachAsItComes:
    def __init__(self, ids: Sequence[int]) -> None:
        self._index_of = {request_id: index for index, request_id in enumerate(ids)}
        self._num_open = len(ids)

    @property
    def are_complete(self) -> bool:
        return not self._num_open

    def hear(self, event: TokensEvent | FinishedEvent) -> Iterator[pb.GenerateResponse]:
        index = self._index_of[event.request_id]
        if isinstance(event, TokensEvent):
            yield pb.GenerateResponse(delta=delta(event, index))
        else:
            self._num_open -= 1
            yield pb.GenerateResponse(finished=finished(event, index))


class BestOfAll:
    def __init__(self, call: Call) -> None:
        self._call = call
        self._tokens: defaultdict[int, list[TokensEvent]] = defaultdict(list)
        self._ends: dict[int, FinishedEvent] = {}

    @property
    def are_complete(self) -> bool:
        return len(self._ends) == len(self._call.requests)

    def hear(self, event: TokensEvent | FinishedEvent) -> Iterator[pb.GenerateResponse]:
        if isinstance(event, TokensEvent):
            self._tokens[event.request_id].append(event)
            return
        self._ends[event.request_id] = event
        if self.are_complete:
            best_first = sorted(self._call.ids, key=self._mean_logprob, reverse=True)  # of equals the first stays first
            # The prompt's log-probabilities came with the first answer, and go out with the best.
            prompt_logprobs = self._tokens[self._call.ids[0]][0].prompt_logprobs
            for index, request_id in enumerate(best_first[: self._call.num_given]):
                whole = self._whole(request_id, prompt_logprobs if index == 0 else ())
                yield pb.GenerateResponse(delta=delta(whole, index))
                yield pb.GenerateResponse(finished=finished(self._ends[request_id], index))

    def _mean_logprob(self, request_id: int) -> float:
        told = [one.logprob for event in self._tokens[request_id] for one in event.logprobs]
        return sum(told) / len(told)

    def _whole(self, request_id: int, prompt_logprobs: tuple[TokenLogprobs, ...]) -> TokensEvent:
        events = self._tokens[request_id]
        logprobs = tuple(one for event in events for one in event.logprobs)
        return TokensEvent(
            request_id=request_id,
            token_ids=tuple(token_id for event in events for token_id in event.token_ids),
            text="".join(event.text for event in events),
            logprobs=logprobs if self._call.tells_logprobs else (),
            prompt_logprobs=prompt_logprobs,
        )
