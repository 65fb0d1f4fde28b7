"""What a checkpoint is made of, what it refuses and in which words, and what may lie ahead of it."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_corpus import build_tiny_corpus

from zephon_vl import Loader
from zephon_vl.errors import StateError, ZephonError
from zephon_vl.lane_state import LaneState
from zephon_vl.recipe import PhaseConfig, Recipe, SourceConfig, VisionConfig, load_recipe
from zephon_vl.sealed import seal, unseal
from zephon_vl.state import ENTRY_VERSION, LaneEntry, decode_entries, encode_entry, lane_key

STEP = 3
"""That the checkpoint of these tests goes on with."""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    return load_recipe(build_tiny_corpus(tmp_path_factory.mktemp("corpus"), images=24, docs=40))


def loader_of(recipe: Recipe, **options: Any) -> Loader:
    return Loader(recipe, workers=0, microbatch_size=8, **options)


def digests(loader: Loader, steps: int = 2) -> list[dict[int, str]]:
    return [next(loader).digests() for _ in range(steps)]


@pytest.fixture(scope="module")
def saved(recipe: Recipe) -> dict[str, Any]:
    with loader_of(recipe) as loader:
        digests(loader, STEP)
        return loader.state_dict()


@pytest.fixture(scope="module")
def after(recipe: Recipe) -> list[dict[int, str]]:
    """What follows the checkpoint in the uninterrupted run."""
    with loader_of(recipe) as loader:
        return digests(loader, STEP + 6)[STEP:]


def changed(recipe: Recipe, **changes: Any) -> Recipe:
    return msgspec.structs.replace(recipe, **changes)


# --- damaged, foreign, newer, incomplete ----------------------------------------------------------------------------


def entry(saved: dict[str, Any], change: Callable[[bytes], Any]) -> dict[str, Any]:
    lanes = dict(saved["lanes"])
    lanes[lane_key(2)] = change(lanes[lane_key(2)])
    return {**saved, "lanes": lanes}


def without_lane(saved: dict[str, Any]) -> dict[str, Any]:
    return {**saved, "lanes": {key: value for key, value in saved["lanes"].items() if key != lane_key(2)}}


def of_another_moment(saved: dict[str, Any]) -> dict[str, Any]:
    return entry(saved, lambda data: encode_entry(unpacked(data).state, STEP + 1, frozenset(), 8))


def unpacked(data: bytes) -> LaneEntry:
    return msgspec.msgpack.decode(unseal(b"zvln", ENTRY_VERSION, data, ""), type=LaneEntry)


def exchanged(saved: dict[str, Any]) -> dict[str, Any]:
    return entry(saved, lambda _: saved["lanes"][lane_key(1)])


def newer_lane(saved: dict[str, Any]) -> dict[str, Any]:
    def change(data: bytes) -> bytes:
        state = msgspec.msgpack.decode(unpacked(data).state, type=LaneState)
        newer = msgspec.msgpack.encode(msgspec.structs.replace(state, version=state.version + 1))
        return encode_entry(newer, STEP, frozenset(), 8)

    return entry(saved, change)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda s: entry(s, lambda d: d[:-1]), "the state of lane 2 is damaged: its checksum does not match"),
        (lambda s: entry(s, lambda d: d[:30] + bytes([d[30] ^ 1]) + d[31:]), "the state of lane 2 is damaged"),
        (lambda s: entry(s, lambda d: b""), "the state of lane 2 is not a state of this library"),
        (lambda s: entry(s, lambda d: b"\x80\x04pickle"), "the state of lane 2 is not a state of this library"),
        (lambda s: entry(s, lambda d: 7), "the state of lane 2 is not a state of this library"),
        (
            lambda s: entry(s, lambda d: seal(b"zvln", ENTRY_VERSION + 1, b"?")),
            f"the state of lane 2 has schema version {ENTRY_VERSION + 1}, this library reads {ENTRY_VERSION}",
        ),
        (newer_lane, "a lane's state has schema version 3, this library reads 2"),
        (without_lane, "the state has no entry for lane 2 .1 of the 4 lanes of this rank are missing; the run has 4"),
        (exchanged, "the state of lane 2 is that of lane 1: the entries were exchanged"),
        (of_another_moment, "the entries are of different moments: lane 0 of step 3, lane 2 of step 4"),
        (lambda s: {**s, "identity": s["identity"][:-9]}, "the identity in the state is damaged"),
        (lambda s: {**s, "identity": b"{}"}, "the identity in the state is not a state of this library"),
        (lambda s: {**s, "identity": seal(b"zvid", 9, b"{}")}, "the identity in the state has schema version 9"),
        (lambda s: {"lanes": s["lanes"]}, "the state has no 'identity'"),
        (lambda s: {"identity": s["identity"]}, "the state has no 'lanes'"),
        (lambda s: {}, "it is not a state of this library, or not a whole one"),
    ],
)
def test_each_damage_is_told_and_the_loader_stays_usable(
    recipe: Recipe, saved: dict[str, Any], after: list[dict[int, str]], damage: Callable[[dict], dict], said: str
) -> None:
    with loader_of(recipe) as loader:
        with pytest.raises(StateError, match=said):
            loader.load_state_dict(damage(saved))
        begun = digests(loader, 1)
        with pytest.raises(StateError, match=said):
            loader.load_state_dict(damage(saved))
        assert loader.next_step == 1 and begun[0].keys() == set(range(8))
        loader.load_state_dict(saved)
        assert digests(loader) == after[:2]


@settings(max_examples=200)
@given(at=st.integers(0, 10**6), value=st.integers(1, 255))
def test_no_flipped_byte_goes_unnoticed(at: int, value: int) -> None:
    data = bytearray(encode_entry(b"", 4, frozenset({1, 9}), 12))
    data[at % len(data)] ^= value
    with pytest.raises(StateError):
        decode_entries({lane_key(0): bytes(data)}, range(1), 1)


@given(step=st.integers(0, 2**40), done=st.frozensets(st.integers(0, 63)), lanes=st.integers(1, 5))
def test_entries_say_what_was_put_in(step: int, done: frozenset[int], lanes: int) -> None:
    entries = {lane_key(lane): encode_entry(b"", step, done, 64) for lane in range(lanes)}
    position = decode_entries(entries, range(lanes), lanes)
    assert (position.step, position.done, position.states) == (step, done, {})
    assert position.untouched == (step + 1 if done else step)


# --- another run ----------------------------------------------------------------------------------------------------


def reweighed(recipe: Recipe) -> Recipe:
    captions, web = recipe.sources
    return changed(recipe, sources=(msgspec.structs.replace(captions, weight=1.0), web))


def renamed(recipe: Recipe) -> Recipe:
    captions, web = recipe.sources
    return changed(recipe, sources=(captions, msgspec.structs.replace(web, name="net")))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: changed(r, seed=8), "recipe differs:\n  seed: saved 7, now 8\n  Resume with the recipe"),
        (reweighed, "sources.captions.weight: saved 3.0, now 1.0"),
        (renamed, "source_order: saved .'captions', 'web'., now .'captions', 'net'"),
        (lambda r: changed(r, lanes=8), "lanes: saved 4, now 8"),
        (lambda r: changed(r, seq_len=128), "seq_len: saved 256, now 128"),
        (lambda r: changed(r, packing=msgspec.structs.replace(r.packing, open_sequences=2)), "packing.open_sequences"),
        (
            lambda r: changed(r, vision=VisionConfig(preset="qwen3_vl", max_pixels=40000, min_pixels=4096)),
            "vision.preset: saved 'qwen2_vl', now 'qwen3_vl'",
        ),
        (lambda r: changed(r, sources=r.sources[:1]), "sources.web.weight: saved 1.0, now 'absent'"),
        (
            lambda r: changed(r, phases=(PhaseConfig(from_step=2, seq_len=320),)),
            "phases.2.seq_len: saved 'absent'",
        ),
        (lambda r: changed(r, skip_steps=((1, 2),)), "skip_steps: saved .., now ..1, 2.."),
        (lambda r: changed(r, skip_steps=((1, 9),)), "skip_steps: saved .., now ..1, 3.."),
    ],
)
def test_another_recipe_is_refused_by_field(
    recipe: Recipe, saved: dict[str, Any], change: Callable[[Recipe], Recipe], said: str
) -> None:
    with loader_of(change(recipe)) as loader:
        with pytest.raises(StateError, match=said) as caught:
            loader.load_state_dict(saved)
        assert "this run is not the one that was saved" in str(caught.value)
        assert loader.next_step == 0
        next(loader)


def test_other_lanes_are_refused_at_once_even_where_the_recipe_may_differ(
    recipe: Recipe, saved: dict[str, Any]
) -> None:
    with loader_of(changed(recipe, lanes=2)) as loader:
        with pytest.raises(StateError, match="lane 0 is of a run with 4 lanes, but the recipe has 2: lanes are fixed"):
            loader.load_state_dict(saved, allow=["recipe"])
        next(loader)


def test_what_decides_no_byte_may_change(recipe: Recipe, after: list[dict[int, str]], tmp_path: Path) -> None:
    templates = [tmp_path / "a.jinja", tmp_path / "b.jinja"]
    runs = []
    for template, skips, share in zip(templates, [((0, 1), (1, 2)), ((0, 2),)], [0.05, 1.0], strict=True):
        template.write_text("{{ messages }}")
        tokenizer = msgspec.structs.replace(recipe.tokenizer, chat_template=str(template))
        runs.append(changed(recipe, tokenizer=tokenizer, skip_steps=skips, max_bad_share=share))
    with loader_of(runs[0]) as loader:
        digests(loader, STEP - 2)
        state = loader.state_dict()
    with loader_of(runs[1]) as loader:
        loader.load_state_dict(state)
        assert digests(loader) == after[:2]


def copied(recipe: Recipe, directory: Path) -> Path:
    shutil.copytree(recipe.base_dir, directory, dirs_exist_ok=True)
    return directory


@pytest.mark.parametrize("identify_by", ["sizes", "contents"])
def test_the_same_data_elsewhere_is_the_same_run(
    recipe: Recipe, after: list[dict[int, str]], tmp_path: Path, identify_by: str
) -> None:
    mine = changed(recipe, identify_by=identify_by)
    with loader_of(mine) as loader:
        digests(loader, STEP)
        state = loader.state_dict()
    with loader_of(changed(mine, base_dir=str(copied(recipe, tmp_path / "moved")))) as loader:
        loader.load_state_dict(state)
        assert digests(loader) == after[:2]


def test_changed_captions_are_refused_by_size_or_by_contents(
    recipe: Recipe, saved: dict[str, Any], tmp_path: Path
) -> None:
    longer = copied(recipe, tmp_path / "longer")
    with (longer / "web" / "000.jsonl").open("a") as file:
        file.write('{"text": "one more line"}\n')
    with (
        loader_of(changed(recipe, base_dir=str(longer))) as loader,
        pytest.raises(StateError, match=r"data differs:\n(.|\n)*web.samples: saved 40, now 41\n"),
    ):
        loader.load_state_dict(saved)

    edited = copied(recipe, tmp_path / "edited")
    with loader_of(changed(recipe, base_dir=str(edited), identify_by="contents")) as loader:
        digests(loader, 1)
        state = loader.state_dict()
    shard = edited / "captions" / "001.tar"
    data = shard.read_bytes().replace(b"cat", b"cow")
    assert data != shard.read_bytes()
    shard.write_bytes(data)
    with (
        loader_of(changed(recipe, base_dir=str(edited), identify_by="contents")) as loader,
        pytest.raises(StateError, match=r"data differs:\n  captions.contents: saved '\w{16}', now '\w{16}'"),
    ):
        loader.load_state_dict(state)
    with loader_of(changed(recipe, base_dir=str(edited))) as loader:
        loader.load_state_dict(state)  # asked for sizes alone


def test_another_tokenizer_is_refused_unless_allowed(recipe: Recipe, saved: dict[str, Any], tmp_path: Path) -> None:
    directory = copied(recipe, tmp_path / "other")
    path = directory / "tokenizer" / "tokenizer.json"
    table = msgspec.json.decode(path.read_bytes())
    merge = table["model"]["merges"].pop()
    table["model"]["vocab"].pop("".join(merge if isinstance(merge, list) else merge.split(" ")), None)
    path.write_bytes(msgspec.json.encode(table))
    with loader_of(changed(recipe, base_dir=str(directory))) as loader:
        with pytest.raises(StateError, match=r"tokenizer differs:\n  fingerprint: saved '.*', now '.*'\n  Use the tok"):
            loader.load_state_dict(saved)
        loader.load_state_dict(saved, allow=["tokenizer"])
        loader.load_state_dict(saved, allow="tokenizer")
        with pytest.raises(ValueError, match=r"allow has .'tokens'., but may have"):
            loader.load_state_dict(saved, allow=["tokens"])


def test_another_image_library_is_refused_unless_allowed(
    recipe: Recipe, saved: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import zephon_vl.loader

    current = zephon_vl.loader.image_identity()
    monkeypatch.setattr(zephon_vl.loader, "image_identity", lambda: {**current, "version": "99.0"})
    with loader_of(recipe) as loader:
        said = r"image_code differs:\n  version: saved '.*', now '99.0'\n  .*allow=.\"image_code\""
        with pytest.raises(StateError, match=said):
            loader.load_state_dict(saved)
        loader.load_state_dict(saved, allow=["image_code"])
        assert loader.next_step == STEP


# --- what lies ahead ------------------------------------------------------------------------------------------------


def test_a_phase_may_be_added_ahead_of_the_checkpoint(
    recipe: Recipe, saved: dict[str, Any], after: list[dict[int, str]]
) -> None:
    planned = changed(recipe, phases=(PhaseConfig(from_step=STEP + 2, seq_len=320, weights={"web": 5.0}),))
    with loader_of(planned) as loader:
        whole = digests(loader, STEP + 4)
    with loader_of(planned) as loader:
        loader.load_state_dict(saved)
        resumed = digests(loader, 4)
    assert whole[STEP:] == resumed
    assert resumed[:2] == after[:2] and resumed[2:] != after[2:4]


def test_a_phase_may_begin_right_at_the_checkpoint(recipe: Recipe, saved: dict[str, Any]) -> None:
    planned = changed(recipe, phases=(PhaseConfig(from_step=STEP, global_batch_size=4, seq_len=200),))
    with loader_of(planned) as loader:
        whole = digests(loader, STEP + 3)
    with loader_of(planned) as loader:
        loader.load_state_dict(saved)
        assert next(loader).input_ids.shape[1] == 200
        loader.load_state_dict(saved)
        assert digests(loader, 3) == whole[STEP:]


def test_a_source_may_be_added_ahead_and_taken_out_again(
    recipe: Recipe, saved: dict[str, Any], after: list[dict[int, str]]
) -> None:
    late = SourceConfig(name="late", path="web/*.jsonl", schema="text", weight=0.0)
    phases = (PhaseConfig(from_step=STEP + 1, weights={"late": 4.0}),)
    planned = changed(recipe, sources=(*recipe.sources, late), phases=phases)
    with loader_of(planned) as loader:
        loader.load_state_dict(saved)
        assert digests(loader, 1) == after[:1]
        before = loader.state_dict()
        digests(loader, 4)
        assert loader.stats.tokens["late"] > 0
        used = loader.state_dict()
    with loader_of(recipe) as loader:
        loader.load_state_dict(before)
        assert digests(loader, 2) == after[1:3]
        with pytest.raises(StateError, match=r"sources.late.weight: saved 0.0, now 'absent'"):
            loader.load_state_dict(used)


def test_steps_are_left_out_and_the_rest_is_as_it_was(
    recipe: Recipe, saved: dict[str, Any], after: list[dict[int, str]]
) -> None:
    skipping = changed(recipe, skip_steps=((STEP, STEP + 2), (STEP + 3, STEP + 4)))
    with loader_of(skipping) as loader:
        loader.load_state_dict(saved)
        assert loader.next_step == STEP + 2
        batches = [next(loader) for _ in range(2)]
    assert [batch.step for batch in batches] == [STEP + 2, STEP + 4]
    assert [batch.digests() for batch in batches] == [after[2], after[4]]
    with loader_of(skipping, start_step=STEP + 3) as loader:
        assert loader.next_step == STEP + 4
        assert next(loader).digests() == after[4]


def test_a_checkpoint_of_the_middle_of_a_step_holds_that_step(recipe: Recipe, after: list[dict[int, str]]) -> None:
    with Loader(recipe, workers=0, microbatch_size=1) as loader:
        for _ in range(STEP * 8 + 3):
            next(loader)
        state = copy.deepcopy(loader.state_dict())
    late = changed(recipe, phases=(PhaseConfig(from_step=STEP + 1, seq_len=320),))
    with loader_of(late) as loader:
        loader.load_state_dict(state)
        rest = next(loader)
        assert (rest.step, set(rest.digests())) == (STEP, set(range(3, 8)))
        assert next(loader).input_ids.shape[1] == 320
    for wrong in ({"phases": (PhaseConfig(from_step=STEP, seq_len=320),)}, {"skip_steps": ((STEP, STEP + 1),)}):
        with closing(loader_of(changed(recipe, **wrong))) as loader, pytest.raises(ZephonError, match="recipe differs"):
            loader.load_state_dict(state)
