"""The page's pictures, in shapes and in words, and the contrast of all that is coloured."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from lambdas.domain.telemetry import Measure, Reading
from lambdas.page import STYLE
from lambdas.sparklines import sparklines
from training_agent.contract import Pair
from training_agent.pictures import ring, svg, timeline

from .document import Document
from .questions import alarm_of

# contrast (WCAG 2.1, AA): text 4.5, graphics 3


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one: str, other: str) -> float:
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _pairs() -> list[tuple[str, str, str]]:
    """(selector, text, ground) of every rule; what a rule leaves out is inherited from the body."""
    found = []
    for selector, rule in re.findall(r"([^{}]+)\{([^{}]+)\}", STYLE):
        colours = dict(re.findall(r"(?:^|;)(color|background):(#[0-9a-f]{6})", rule))
        if colours:
            found.append((selector, colours.get("color", "#1a1a1a"), colours.get("background", "#ffffff")))
    return found


def test_the_contrast_formula_is_the_standards() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


def test_all_text_has_contrast_aa() -> None:
    pairs = _pairs()
    assert len(pairs) >= 10
    assert [p for p in pairs if contrast(*p[1:]) < 4.5] == []
    assert contrast("#5c3c00", "#fff1d6") >= 4.5  # the link in a mistake
    for colour in (svg.INK, svg.FAINT, svg.BAD, svg.GOOD, svg.DOUBT):
        assert contrast(colour, svg.PAPER) >= 4.5
        assert contrast(colour, svg.SHADE) >= 3


# pictures


@pytest.mark.parametrize("row", ["C1", "C2", "V1", "V2", "V4", "W1", "R1", "N0", "S1"])
def test_every_picture_has_a_title_a_description_and_the_same_in_words(row: str) -> None:
    alarm = alarm_of(row)
    drawn = [p for p in (ring(alarm, alarm.named_ranks), timeline(alarm)) if p is not None]
    assert len(drawn) == (1 if row in ("R1", "S1") else 2)
    for picture in drawn:
        page = Document(str(picture.svg))
        assert [t for t, _ in page.tags][:3] == ["svg", "title", "desc"]
        assert picture.text and picture.text in " ".join(page.words)


def test_the_ring_says_who_recomputed_whom_and_what_the_third_gpus_said() -> None:
    alarm = alarm_of("C1")
    picture = ring(alarm, (3,))
    assert picture is not None
    assert "Rank 2 recomputed rank 3 and got other bits." in picture.text
    assert "rank 3 computed bad0bad0; ranks 2, 4, 5 computed 600d600d" in picture.text
    assert "Asked again, rank 3 computes the same again." in picture.text
    assert str(picture.svg).count("<circle") == 6 + 1  # the accused has two rings
    right = ring(alarm_of("V2"), (3,))
    assert right is not None and "computes what the others do" in right.text


def test_a_large_job_is_drawn_by_those_involved() -> None:
    alarm = replace(alarm_of("C1"), world_size=16_384, pairs=tuple(Pair(i, i + 1) for i in range(900)))
    picture = ring(alarm, (3,))
    assert picture is not None and "24 of 16384 ranks are drawn" in picture.text
    assert len(picture.text) < 1000 and "896 more comparisons" in picture.text


def test_ranks_that_do_not_exist_are_not_drawn() -> None:
    alarm = replace(alarm_of("C1"), pairs=(Pair(-5, 10**12), Pair(3, 3)), contests=())
    assert ring(alarm, (10**15,)) is not None
    assert ring(replace(alarm, pairs=(), contests=()), (10**15,)) is None


def test_the_time_line_tells_passed_from_doubtful_from_blocked() -> None:
    text = timeline(alarm_of("C1")).text
    assert "Suspect window: steps 21 to 30; checkpoints saved in it are doubtful" in text
    assert "nothing is saved from there on" in text and "step 20, its checks passed" in text
    first = replace(
        alarm_of("C1"), step=1, suspect_window=(1, 1), last_audit_pass=None, last_weight_check_pass=None,
        resume_from=None,
    )  # fmt: skip
    assert "No checkpoint from before the window is known" in timeline(first).text


@pytest.mark.parametrize("step", [0, 1, 2**62])
def test_any_window_is_drawn_inside_its_frame(step: int) -> None:
    alarm = replace(alarm_of("C1"), step=step, suspect_window=(step, 0))
    xs = [float(x) for x in re.findall(r' (?:x|cx)="(-?[\d.]+)"', str(timeline(alarm).svg))]
    assert xs and all(0 <= x <= 360 for x in xs)


def test_telemetry_is_drawn_where_there_is_data_and_never_taken_for_health() -> None:
    readings = (
        Reading(Measure.ECC_SINGLE_BIT, 9.0, (0.0, 0.0, 4.0, 9.0)),
        Reading(Measure.TEMPERATURE, 71.0, (71.0,)),
        Reading(Measure.XID, None),
    )
    picture = sparklines(readings)
    assert picture is not None and str(picture.svg).count("<polyline") == 2
    assert "corrected ECC errors: from 0 to 9." in picture.text and "last Xid: no data." in picture.text
    assert "does not exonerate" in picture.text
    assert sparklines(()) is None and sparklines((Reading(Measure.XID, None),)) is None
    steep = sparklines((Reading(Measure.XID, 1e308, (-1e308, 1e308) * 900),))
    assert steep is not None and len(str(steep.svg)) < 4_000 and "nan" not in str(steep.svg)
