"""The story's schedule, and that it is played in order."""

import pytest

from pipeline.demo import story
from pipeline.demo.story import MAX_DOWN_S, MIN_DOWN_S, SHORTEST_S, Act, play, schedule

LENGTHS = (20.0, 40.0, 60.0, 300.0)


@pytest.mark.parametrize("seconds", LENGTHS)
def test_every_act_comes_once_in_order_and_the_last_is_the_end(seconds: float) -> None:
    cues = schedule(seconds)
    assert [cue.act for cue in cues] == list(Act)
    assert [cue.at_s for cue in cues] == sorted({cue.at_s for cue in cues})
    assert cues[0].at_s > 0
    assert cues[-1].at_s == seconds


@pytest.mark.parametrize("seconds", LENGTHS)
def test_the_engine_is_down_long_enough_to_be_noticed_and_never_longer_than_needed(
    seconds: float,
) -> None:
    at_s = {cue.act: cue.at_s for cue in schedule(seconds)}
    down_s = at_s[Act.RESTART] - at_s[Act.KILL]
    assert MIN_DOWN_S <= down_s <= MAX_DOWN_S


@pytest.mark.parametrize("seconds", LENGTHS)
def test_the_last_part_is_the_longest_to_show_how_traffic_returns(seconds: float) -> None:
    at_s = [cue.at_s for cue in schedule(seconds)]
    parts = [after - before for before, after in zip([0.0, *at_s], at_s, strict=False)]
    assert max(parts) == parts[-1]


def test_a_demo_too_short_for_the_story_is_refused() -> None:
    with pytest.raises(ValueError, match="too short"):
        schedule(SHORTEST_S - 1)


AT_ONCE = tuple(cue._replace(at_s=0.0) for cue in schedule(20))


async def test_acts_are_told_then_carried_out_and_acts_without_an_action_are_told_too() -> None:
    seen: list[str] = []
    await play(
        AT_ONCE,
        actions={Act.KILL: lambda: seen.append("killing")},
        waits_for={},
        acted=lambda act: seen.append(str(act)),
    )
    assert seen == ["steady", "slow", "unslow", "kill", "killing", "restart", "end"]


async def test_an_act_waits_for_what_it_builds_on_and_the_later_ones_with_it() -> None:
    seen: list[str] = []
    looks = iter([False, False, True])

    def holds() -> bool:
        seen.append("look")
        return next(looks)

    await play(
        AT_ONCE,
        actions={},
        waits_for={Act.UNSLOW: holds},
        acted=lambda act: seen.append(str(act)),
    )
    assert seen == ["steady", "slow", "look", "look", "look", "unslow", "kill", "restart", "end"]


async def test_an_act_waits_no_longer_than_its_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(story, "PATIENCE_S", 0.01)
    seen: list[Act] = []
    await play(AT_ONCE, actions={}, waits_for={Act.END: lambda: False}, acted=seen.append)
    assert seen == list(Act)
