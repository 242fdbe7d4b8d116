"""The page of the main job: one file, which works from the file system."""

from __future__ import annotations

import base64
import html
from pathlib import Path

from steps import Notes


def page(notes: Notes) -> str:
    """The whole page; the digit reader in it is the exported program."""
    facts = notes.facts
    digits, export, trees = facts["digits"], facts["export"], facts["trees"]
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    filled = {
        "SECONDS": f"{notes.seconds:.0f}",
        "ACCURACY": f"{100 * digits['accuracy']:.1f} %",
        "EAGER": f"{digits['eager']:.0f} µs", "COMPILED": f"{digits['compiled']:.0f} µs",
        "SAME": "the same bits" if digits["same"] else "DIFFERENT bits",
        "STEPS": str(digits["steps"]), "CURVES": digits["curves"],
        "EXPLAINED": html.escape(digits["explained"]), "PROFILE": html.escape(digits["profile"]),
        "SUMMARY": html.escape(digits["summary"]), "PRINTED": html.escape(facts["mistake"]["printed"]),
        "LOSS": f"{facts['mistake']['loss']:.2f}",
        "RAN": table({f"run from {what}": told for what, told in export["rows"].items()}),
        "WRITTEN": table(
            {name: f"{size / 1024:.0f} KB" for name, size in export["sizes"].items()}
            | {f"export to {what}": f"{1000 * seconds:.0f} ms" for what, seconds in export["times"].items()}
        ),
        "PROGRAM": html.escape(export["program"]), "GRAPH": export["graph"],
        "TREES": table({f"64 trees, {name}": f"{ms:.1f} ms a step" for name, ms in trees["times"].items()}),
        "TREE": html.escape(trees["example"]), "NODES": f"{trees['nodes']} nodes in {trees['count']} trees",
        "TREECURVES": trees["curves"],
    }  # fmt: skip
    for name, text in filled.items():
        template = template.replace(f"{{{{{name}}}}}", text)
    runner = facts["page"]["runner"].replace("export ", "")
    code = base64.b64encode(facts["page"]["code"]).decode()
    return template.replace("/*RUNNER*/", runner).replace("/*CODE*/", code)


def table(rows: dict[str, str]) -> str:
    """Two columns."""
    cells = (
        f"<tr><th scope='row'>{html.escape(name)}</th><td>{html.escape(told)}</td></tr>"
        for name, told in rows.items()
    )
    return f"<table>{''.join(cells)}</table>"
