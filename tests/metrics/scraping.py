"""Reading a page of metrics as Prometheus does: the parser is that of Prometheus' own Python library."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families

Sample = tuple[str, frozenset[tuple[str, str]]]


def get(address: str, path: str) -> tuple[int, str]:
    """Status and body."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=120) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as exc:
        return exc.code, exc.read().decode()


def samples(text: str) -> dict[Sample, float]:
    """(name, labels) -> value; a sample that is there twice is an error."""
    found: dict[Sample, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"{key} is on the page twice"
            found[key] = sample.value
    return found


def scrape(address: str) -> dict[Sample, float]:
    status, text = get(address, "/metrics")
    assert status == 200
    return samples(text)


def values(page: dict[Sample, float], name: str, **labels: str) -> list[float]:
    """Of the samples of this name that have these labels, among others."""
    wanted = set(labels.items())
    return [value for (found, has), value in page.items() if found == name and wanted <= has]


def value(page: dict[Sample, float], name: str, **labels: str) -> float:
    (found,) = values(page, name, **labels)
    return found


def label_names(page: Iterable[Sample], name: str) -> set[str]:
    return {label for found, labels in page if found == name for label, _ in labels}
