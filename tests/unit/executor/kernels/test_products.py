"""Products in bfloat16: with each of the instructions, of any number of tokens, of ties and of what is no number."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Protocol

import pytest
import torch

from executor_service.kernels import build as building
from executor_service.kernels.build import build
from executor_service.kernels.products import Products
from executor_service.model.gguf import default_cache_dir
from support.kernels import compiled_kernels

WITHOUT_TILES = ("-mno-amx-tile", "-mno-amx-bf16", "-mno-amx-int8")
SOURCES = ("pack.cpp", "linear.cpp", "head.cpp", "head_screened.cpp")
# What a processor would not choose for itself is right on it, too.
BUILDS = {
    "best": (),
    "pairs": (*WITHOUT_TILES, "-DMETRONOME_MULTIPLIES_PAIRS"),
    "floats": (*WITHOUT_TILES, "-DMETRONOME_MULTIPLIES_FLOATS"),
    "without bfloat16": (*WITHOUT_TILES, "-mno-avx512bf16"),
    "without AVX-512": (*WITHOUT_TILES, "-mno-avx512f"),
    "without AVX-512 and AVX-VNNI": (*WITHOUT_TILES, "-mno-avx512f", "-U__AVXVNNI__"),
}


@pytest.fixture(scope="module", params=BUILDS)
def products(request: pytest.FixtureRequest) -> Products:
    found = compiled_kernels(torch.bfloat16).products
    if found is None:
        pytest.skip("this processor has no AVX2")
    if request.param == "best":
        return found
    capabilities = torch.cpu.get_capabilities()
    if not capabilities.get("avx512_f", False):
        pytest.skip("this processor has no AVX-512, so its best are those without")
    if request.param == "pairs" and not capabilities.get("avx512_bf16", False):
        pytest.skip("this processor has no AVX512_BF16")
    with pytest.MonkeyPatch.context() as patch:
        sources = (Path(building.__file__).with_name(name) for name in SOURCES)
        patch.setattr(building, "SOURCES", tuple(sources))
        patch.setattr(building, "FLAGS", (*building.FLAGS, *BUILDS[request.param]))
        # Kept beside the executor's own, by sources and flags: each takes the compiler ten seconds.
        found = Products.of(ctypes.CDLL(str(build(default_cache_dir(), print))))
    assert found is not None
    assert not found.uses_tiles
    return found


class Largest(Protocol):
    def __call__(self, states: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]: ...


@pytest.fixture(params=["by panels", "screened"])
def largest(request: pytest.FixtureRequest, products: Products) -> Largest:
    """Ids and values of the largest logits of states [T, I] by a weight [O, I]."""

    def by(states: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        packed = products.pack(weight)
        screen = products.screen(packed) if request.param == "screened" else None
        if request.param == "screened" and screen is None:
            pytest.skip("this processor has tiles, or AVX-512 without AVX512_VNNI")
        return products.largest_logits(states, packed, screen)

    return by


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.mark.parametrize("num_tokens", [0, 1, 15, 16, 17, 33, 70, 900])
@pytest.mark.parametrize(("num_inputs", "num_outputs"), [(32, 16), (64, 48), (640, 256)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_linear_layer(
    num_tokens: int, num_inputs: int, num_outputs: int, with_bias: bool, products: Products
) -> None:
    states, weight = numbers(num_tokens, num_inputs), numbers(num_outputs, num_inputs, seed=1)
    bias = torch.linspace(-3, 3, num_outputs) if with_bias else None
    assert products.can_pack(weight)
    got = products.linear(states, products.pack(weight), bias)
    expected = states.double() @ weight.double().t() + (0.0 if bias is None else bias.double())
    # One rounding to bfloat16, and of sums in float32 what their size makes of it.
    assert torch.allclose(got.double(), expected, rtol=2**-8, atol=1e-4)


def test_a_linear_layer_of_states_in_any_layout(products: Products) -> None:
    states, weight = numbers(64, 5).t(), numbers(32, 64, seed=1)
    expected = states.contiguous().double() @ weight.double().t()
    assert torch.allclose(
        products.linear(states, products.pack(weight), None).double(), expected, rtol=2**-8, atol=1e-4
    )


def test_rows_of_a_linear_layer_do_not_depend_on_others(products: Products) -> None:
    states, weight = numbers(40, 64), products.pack(numbers(96, 64, seed=1))
    spoiled = states.clone()
    spoiled[7] = float("nan")
    whole, with_faulty = products.linear(states, weight, None), products.linear(spoiled, weight, None)
    assert with_faulty[7].isnan().all()
    others = torch.arange(40) != 7
    assert torch.equal(with_faulty[others], whole[others])
    assert torch.equal(products.linear(states[30:31], weight, None), whole[30:31])


@pytest.mark.parametrize("shape", [(24, 64), (32, 40)])
def test_shapes_that_no_panel_holds_are_left_to_others(shape: tuple[int, int], products: Products) -> None:
    assert not products.can_pack(numbers(*shape))
    assert not products.can_pack_in_place(numbers(*shape))


def test_a_weight_that_is_packed_in_place_is_the_same_and_its_rows_can_be_looked_up(products: Products) -> None:
    weight = numbers(96, 640)
    packed = products.pack(weight)
    taken = weight.clone()
    in_place = products.pack_in_place(taken)
    assert in_place.panels.data_ptr() == taken.data_ptr()
    assert torch.equal(in_place.panels, packed.panels)
    wanted = torch.tensor([0, 95, 31, 32, 31, 17])
    assert torch.equal(products.rows(in_place, wanted), weight[wanted])
    assert products.rows(in_place, wanted[:0]).shape == (0, 640)


@pytest.mark.parametrize("num_tokens", [0, 1, 5, 8, 9, 16, 17, 32, 50, 64])
def test_the_largest_logits_are_those_of_all_logits(num_tokens: int, products: Products, largest: Largest) -> None:
    states, weight = numbers(num_tokens, 128), numbers(4096, 128, seed=1)
    token_ids, maxima = largest(states, weight)
    logits = products.linear(states, products.pack(weight), None)  # the same sums
    assert torch.equal(token_ids, logits.float().argmax(dim=-1))
    assert torch.equal(maxima, logits.float().amax(dim=-1) if num_tokens else torch.empty(0))


@pytest.mark.parametrize("num_inputs", [32, 96, 640, 2048])
@pytest.mark.parametrize("outlier", [1.0, 300.0])
def test_the_largest_logits_where_a_few_numbers_stand_out(
    num_inputs: int, outlier: float, products: Products, largest: Largest
) -> None:
    states, weight = numbers(20, num_inputs), numbers(2048, num_inputs, seed=1)
    states[:, [1, 30]] *= outlier
    weight[::7] *= 4.0
    weight[5::100, 3] = outlier
    logits = products.linear(states, products.pack(weight), None).float()
    token_ids, maxima = largest(states, weight)
    assert torch.equal(token_ids, logits.argmax(dim=-1))
    assert torch.equal(maxima, logits.amax(dim=-1))


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("place", [0, 1, 2, 5, 31])
def test_the_largest_logits_where_products_of_bytes_are_as_large_as_can_be(
    sign: float, place: int, products: Products, largest: Largest
) -> None:
    """One number of each row alone: turned, all are of the same size, and for the first of the same sign, too."""
    states, weight = torch.zeros(9, 128).bfloat16(), torch.zeros(4096, 128).bfloat16()
    states[:, place] = sign
    weight[:, place] = torch.linspace(-2, 2, 4096).bfloat16()
    logits = products.linear(states, products.pack(weight), None).float()
    token_ids, maxima = largest(states, weight)
    assert torch.equal(token_ids, logits.argmax(dim=-1))
    assert torch.equal(maxima, logits.amax(dim=-1))


def turned(rows: torch.Tensor) -> torch.Tensor:
    """rows [T, I], I a power of two, by the Hadamard matrix that eight_bits.h turns them by; it is its own inverse."""
    matrix = torch.ones(1, 1)
    while len(matrix) < rows.shape[1]:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return rows @ matrix / len(matrix) ** 0.5


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("fours_fit", [False, True])
def test_the_largest_logits_where_rounding_leaves_out_all_that_counts(
    seed: int, fours_fit: bool, products: Products, largest: Largest
) -> None:
    """One entry in the direction of what rounding leaves of a state, of which 8 bits see nothing, and one that they see
    as it is, 7 percent less: with three quarters of the bound of errors that would be taken.
    """
    states = numbers(1, 128, seed=seed)
    state = turned(states.float())
    step = state.abs().max() / 127
    if fours_fit:  # as on AVX2, where four numbers that are summed are 126 steps before rounding
        fours = state.view(-1, 2, 2, 2).transpose(1, 2).reshape(-1, 4)
        step = torch.stack((step, *(signed.clamp(min=0).sum(1).max() / 126 for signed in (fours, -fours)))).max()
    seen = (state / step).round() * step
    unseen = state - seen
    unseen = unseen - seen * (unseen * seen).sum() / seen.square().sum()
    unseen = (unseen / unseen.abs().max() * 127).round()  # entries lose nothing
    place = int(state.abs().argmax())
    single = torch.zeros(1, 128)
    single[0, place] = 0.93 * (state * unseen).sum() / state[0, place]
    weight = torch.zeros(64, 128)
    weight[5], weight[40] = turned(single)[0], turned(unseen)[0]
    logits = products.linear(states, products.pack(weight.bfloat16()), None).float()
    assert logits.argmax(dim=-1).tolist() == [40]
    token_ids, maxima = largest(states, weight.bfloat16())
    assert token_ids.tolist() == [40]
    assert torch.equal(maxima, logits.amax(dim=-1))


def test_the_largest_of_logits_that_are_nearly_equal(products: Products, largest: Largest) -> None:
    """Too many of them to be told apart by bounds: 30,000 entries that differ by less than these."""
    states, weight = numbers(11, 64), numbers(1, 64, seed=1) + numbers(30_016, 64, seed=2) * 2.0**-8
    states[3] = numbers(1, 64, seed=3)[0] * 0.0
    logits = products.linear(states, products.pack(weight), None).float()
    token_ids, maxima = largest(states, weight)
    assert torch.equal(token_ids, logits.argmax(dim=-1))
    assert torch.equal(maxima, logits.amax(dim=-1))
    assert token_ids[3] == 0


@pytest.mark.parametrize("size", [1e-36, 1e-18, 1e15])
def test_the_largest_of_logits_of_any_size(size: float, products: Products, largest: Largest) -> None:
    states, weight = numbers(9, 64), numbers(512, 64, seed=1)
    weight[:300] *= size  # others are of another order
    weight[300:400] = 0.0
    logits = products.linear(states, products.pack(weight), None).float()
    token_ids, maxima = largest(states, weight)
    assert torch.equal(token_ids, logits.argmax(dim=-1))
    assert torch.equal(maxima, logits.amax(dim=-1))


def test_a_logit_does_not_depend_on_how_many_tokens_there_are(products: Products, largest: Largest) -> None:
    states, weight = numbers(40, 640), numbers(4096, 640, seed=1)
    packed = products.pack(weight)
    token_ids, maxima = largest(states, weight)
    rows = products.linear(states, packed, None)
    for count in (1, 3, 8, 9, 17):
        fewer_ids, fewer = largest(states[:count], weight)
        assert torch.equal(fewer_ids, token_ids[:count])
        assert torch.equal(fewer, maxima[:count])
        assert torch.equal(products.linear(states[:count], packed, None), rows[:count])


def test_the_lowest_id_is_taken_among_logits_that_are_equal_in_bfloat16(largest: Largest) -> None:
    """Sums that differ by less than bfloat16 shows, in both orders, within a panel and far apart."""
    weight = torch.zeros(8192, 32, dtype=torch.bfloat16)
    for token_id, excess in ((5, 0.0), (7, 0.001), (30, 0.0), (4000, 0.002), (8191, 0.003)):
        weight[token_id, 0], weight[token_id, 1] = 1.0, excess
    token_ids, maxima = largest(torch.ones(3, 32, dtype=torch.bfloat16), weight)
    assert token_ids.tolist() == [5, 5, 5]
    assert maxima.tolist() == [1.0, 1.0, 1.0]
    weight[5, 0] = 0.5
    assert largest(torch.ones(3, 32, dtype=torch.bfloat16), weight)[0].tolist() == [7, 7, 7]


def test_logits_that_are_no_numbers_are_told_of_their_row_alone(largest: Largest) -> None:
    weight = numbers(64, 32)
    weight[:, 0] = 1.0
    states = numbers(5, 32, seed=1)
    states[1, 3], states[2, 0], states[3, 0] = float("nan"), float("inf"), float("-inf")
    token_ids, maxima = largest(states, weight)
    assert maxima[1].isnan()
    assert maxima[2:4].tolist() == [float("inf"), float("-inf")]
    alone = largest(states[[0, 4]], weight)
    assert torch.equal(token_ids[[0, 4]], alone[0])
    assert torch.equal(maxima[[0, 4]], alone[1])


def test_one_token_whose_logit_is_no_number_spoils_its_row(largest: Largest) -> None:
    weight = numbers(64, 32)
    weight[40, 3] = float("nan")
    assert largest(numbers(2, 32, seed=1), weight)[1].isnan().all()
