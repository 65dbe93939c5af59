"""Every study can be imported and has a README; its quick pages are what its command writes today."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from studies import check
from studies.study import HERE, Page, Study

QUICK = [name for name in check.names() if check.quick(name)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", QUICK)
def test_committed_pages_are_what_their_command_writes(name: str) -> None:
    """All of a study in one case: its pages share what takes long."""
    told = "\n".join(line for study, page in check.quick(name) for line in check.differs(study, page))
    assert not told, f"`python -m studies.{name} --out studies/{name}` writes it anew\n{told}"


@pytest.mark.parametrize("name", check.names())
def test_a_study_says_its_question_its_command_its_answer_and_what_it_does_not_show(name: str) -> None:
    text = (HERE / name / "README.md").read_text()
    titles = re.findall(r"^(?:## |\*\*)([\w ]+?)(?:\.\*\*|$)", text, re.MULTILINE)
    assert titles == ["Question", "Command", "Answer", "What it does not show"]
    assert f"python -m studies.{name}" in text
    assert len(text.split()) <= 450, "half a page"
    assert f"- [{name}]({name}/README.md)" in (HERE / "README.md").read_text()


@pytest.mark.parametrize("name", check.names())
def test_every_page_of_a_study_is_committed_and_linked_in_its_readme(name: str) -> None:
    if (study := check.imported(name)) is None:
        return
    for page in study.pages:
        assert (study.folder / page.name).exists()
        link = Path(os.path.relpath(study.folder / page.name, HERE / name)).as_posix()
        assert f"]({link})" in (HERE / name / "README.md").read_text()


@pytest.mark.parametrize("name", check.names())
def test_the_figures_of_an_answer_are_those_of_the_pages(name: str) -> None:
    study = check.imported(name)
    answer = (HERE / name / "README.md").read_text().partition("## Answer")[2].partition("\n## ")[0]
    pages = "".join(study.committed(page) for page in study.pages) if study else ""
    figures = re.findall(r"\d[\d.,]*\d %|\d[\d.,]*\d ?%|\d+ of \d+", answer)
    missing = [figure for figure in figures if figure.replace(" %", "%") not in pages.replace(" %", "%")]
    assert not (pages and missing)


def made_up(text: str = "# A\n\n| x | y |\n|--|--:|\n| 1 | 2 |\n") -> Study:
    return Study("made-up", [Page("a.md", lambda: text)])


def test_a_page_that_differs_is_told_by_its_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = made_up()
    monkeypatch.setattr(Study, "committed", lambda self, page: page.text().replace("| 1 |", "| 3 |"))
    monkeypatch.setattr(check, "imported", lambda name: study)
    assert check.main(["made-up"]) == 1
    told = capsys.readouterr().out
    assert "-| 3 | 2 |" in told
    assert "+| 1 | 2 |" in told
    monkeypatch.setattr(Study, "committed", lambda self, page: page.text())
    assert check.main(["made-up"]) == 0


def test_continuous_integration_leaves_pages_that_take_most_of_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = [Page(f"{again}.md", str, again=again) for again in ("commit", "check", "asked")]
    monkeypatch.setattr(check, "imported", lambda name: Study("made-up", pages))
    monkeypatch.delenv("STUDIES_PAGES", raising=False)
    assert [page.name for _, page in check.quick("made-up")] == ["commit.md", "check.md"]
    assert len(check.quick("made-up", every=True)) == 3
    monkeypatch.setenv("STUDIES_PAGES", "commit")
    assert [page.name for _, page in check.quick("made-up")] == ["commit.md"]


def test_a_study_prints_its_pages_or_writes_them_or_gives_their_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = made_up()
    assert study.main([]) == 0
    assert capsys.readouterr().out.startswith("# A")
    assert study.main(["--out", str(tmp_path), "--json"]) == 0
    assert (tmp_path / "a.md").read_text() == study.pages[0].text()
    [table] = json.loads(capsys.readouterr().out)["pages"]["a.md"]
    assert table == {"title": "A", "rows": [{"x": "1", "y": "2"}]}


LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", sorted(HERE.rglob("*.md")), ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target
