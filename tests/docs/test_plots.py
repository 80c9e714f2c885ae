"""The plots of the performance page are what the results give, and all that is drawn is in the picture."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from benchmarks import plots
from benchmarks.dot_plot import DotPlot, Panel, Row

SVG = "{http://www.w3.org/2000/svg}"


def test_no_plot_is_stale() -> None:
    assert plots.stale() == [], "run python -m benchmarks.plots"
    page = (plots.FOLDER.parent / "performance.md").read_text()
    assert set(re.findall(r"\(plots/(\w+)\.svg\)", page)) == set(plots.PLOTS)


def test_another_figure_makes_a_plot_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    read, before = plots._results, plots.stale()
    monkeypatch.setattr(plots, "_results", lambda name: [row | {"ratio": 1.23} for row in read(name)])
    assert set(plots.stale()) == {"nets", *before}


@pytest.mark.parametrize("name", plots.PLOTS)
def test_marks_and_labels_are_inside_the_picture(name: str) -> None:
    picture = ElementTree.fromstring(plots.PLOTS[name]().svg())
    width, height = float(picture.attrib["width"]), float(picture.attrib["height"])
    marks = picture.findall(f"{SVG}polygon")
    assert len(marks) > 20
    for mark in marks:
        for point in mark.attrib["points"].split():
            x, y = map(float, point.split(","))
            assert 0 < x < width
            assert 0 < y < height
    for text in picture.findall(f"{SVG}text"):
        long = 6.2 * len(text.text or "")  # pixels, about
        x = float(text.attrib["x"])
        left = {"start": x, "middle": x - long / 2, "end": x - long}[text.attrib["text-anchor"]]
        assert left > 0, text.text
        assert left + long < width, text.text


def test_equal_ratios_are_equal_lengths_on_a_logarithmic_axis() -> None:
    panel = Panel("", "", (0.5, 1, 2), [Row("a", {"x": 4.0})])
    low, one, two, four = map(panel.position, (0.5, 1, 2, 4))
    assert one - low == pytest.approx(two - one) == pytest.approx(four - two)
    linear = Panel("", "", (0, 1, 2), [Row("a", {"x": 4.0})], logarithmic=False)
    assert linear.position(2) - linear.position(0) == pytest.approx(linear.position(4) - linear.position(2))


def test_what_was_not_measured_has_no_mark() -> None:
    panel = Panel("<fast>", "", (1, 2), [Row("a & b", {"x": 1.5})])
    text = DotPlot("", ("x", "y"), [panel]).svg()
    assert text.count("<polygon") == 3  # two in the legend
    assert "a &amp; b, x: 1.5" in text
    ElementTree.fromstring(text)
