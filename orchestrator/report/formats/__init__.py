"""The formats of reports for files, each in a file of this folder and a line of the table."""

from orchestrator.report.formats.base import Format
from orchestrator.report.formats.csv_file import CSV
from orchestrator.report.formats.latex import LATEX
from orchestrator.report.formats.markdown import MARKDOWN

FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        MARKDOWN,
        CSV,
        LATEX,
    )
}
