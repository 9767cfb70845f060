"""Option strings by release: refused, ignored, unsafe and inert options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocsim import CachingAllocator, replay
from allocsim.analysis.lint import Finding, assignments, lint, lint_conf
from allocsim.core import RELEASES, parse_conf
from allocsim.errors import ConfigError, RecordingError
from allocsim.recording import Mark, MarkKind, Provenance
from allocsim.results import Recording

Record = Callable[..., Recording]


def found(conf: str, torch: str = "2.15") -> list[tuple[str, str]]:
    return [(each.check, each.text) for each in lint_conf(conf, torch).findings]


def only(findings: tuple[Finding, ...]) -> Finding:
    (finding,) = findings
    return finding


def about(recording: Recording, conf: str | None = None, **options: str) -> tuple[Finding, ...]:
    """Return the findings except those about stacks, which the model does not record."""
    findings = lint(recording, conf, **options).findings
    return tuple(finding for finding in findings if finding.check != "stacks")


def program(gpu: CachingAllocator) -> None:
    gpu.free(gpu.malloc(30 << 20))
    gpu.malloc(1 << 20)


# -- variables -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("torch", "is_read"), [("2.1", False), ("2.9.1", False), ("2.10", True), ("2.15", True)]
)
def test_the_new_name_of_the_variable_is_read_from_2_10_on(torch: str, is_read: bool) -> None:
    conf = "PYTORCH_ALLOC_CONF=expandable_segments:True"
    report = lint_conf(conf, torch)
    assert report.passed is is_read
    if not is_read:
        finding = only(report.findings)
        assert finding.check == "option_ignored"
        assert finding.value == conf
        assert finding.text.endswith(
            f"PyTorch {report.torch_version} does not read PYTORCH_ALLOC_CONF; it reads "
            "PYTORCH_CUDA_ALLOC_CONF"
        )


def test_option_check_prefers_the_variable_named_after_cuda() -> None:
    both = (
        "PYTORCH_ALLOC_CONF=expandable_segments:True PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64"
    )
    finding = only(lint_conf(both, "2.12").findings)
    assert finding.value == "PYTORCH_ALLOC_CONF=expandable_segments:True"
    assert "reads PYTORCH_CUDA_ALLOC_CONF first" in finding.text


def test_lint_warns_of_an_unread_variable() -> None:
    (only_one,) = found("PYTORCH_CUDA_ALLOC_CONFIG=expandable_segments:True")
    assert "does not read PYTORCH_CUDA_ALLOC_CONFIG" in only_one[1]


@pytest.mark.parametrize(
    "text",
    [
        "export PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64",
        "set PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64",
        '$env:PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:64"',
        "PYTORCH_CUDA_ALLOC_CONF='max_split_size_mb:64' python train.py",
    ],
)
def test_assignments_are_parsed_as_in_a_shell(text: str) -> None:
    (each,) = assignments(text)
    assert (each.variable, each.conf) == ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    assert found(text) == []


def test_lint_reports_ignored_variables_of_a_recorded_command(recorded: Record) -> None:
    recording = recorded(program, "1GiB", torch_version="2.9")
    command = "env PYTORCH_ALLOC_CONF=expandable_segments:True python train.py LR=0.1"
    made = Provenance(torch_version="2.9.1", command=command)
    finding = only(about(replace(recording, provenance=made)))
    assert finding.check == "option_ignored"
    assert finding.value == "PYTORCH_ALLOC_CONF=expandable_segments:True"


# -- strings -------------------------------------------------------------------------------


def test_an_option_of_a_later_release_is_refused_and_the_releases_that_take_it_are_named() -> None:
    ((check, text),) = found("per_process_memory_fraction:0.5", "2.9")
    assert check == "option_refused"
    assert text.startswith("unrecognized option 'per_process_memory_fraction' in release 2.9; ")
    assert text.endswith("accepted by PyTorch 2.10, 2.11, 2.12, 2.13, 2.14, 2.15")


def test_refusal_of_an_equals_sign_suggests_a_colon() -> None:
    ((check, text),) = found("max_split_size_mb=128,garbage_collection_threshold:0.8")
    assert check == "option_refused"
    assert "; write max_split_size_mb:128; no release accepts it" in text


def test_the_asynchronous_backend_is_accepted_by_pytorch_but_not_modelled() -> None:
    finding = only(lint_conf("backend: cudaMallocAsync").findings)
    assert (finding.check, finding.severity) == ("option_unmodelled", "warning")
    assert finding.text == "backend cudaMallocAsync is not modelled; expected native"


@pytest.mark.parametrize(
    ("conf", "refusal"),
    [
        ("backend:cudaMallocAsync,foo:1", "'foo'"),
        ("foo:1, backend: cudaMallocAsync", "'foo'"),
        ("backend:cudaMallocAsync,max_split_size_mb:5", "max_split_size_mb"),
    ],
)
def test_other_options_beside_the_asynchronous_backend_are_refused(conf: str, refusal: str) -> None:
    finding = only(lint_conf(conf).findings)
    assert (finding.check, finding.severity) == ("option_refused", "error")
    assert refusal in finding.text
    assert "cudaMallocAsync" not in finding.text


def test_expandable_segments_with_a_split_limit_are_unsafe() -> None:
    conf = "expandable_segments:True,max_split_size_mb:128"
    finding = only(lint_conf(conf).findings)
    assert (finding.check, finding.severity, finding.value) == ("option_unsafe", "warning", conf)
    assert "expandable_segments:True with max_split_size_mb:128" in finding.text


def test_lint_warns_of_handle_sizes_that_the_driver_refuses() -> None:
    conf = "expandable_segments:True,large_segment_size_mb:13"
    finding = only(lint_conf(conf).findings)
    assert (finding.check, finding.severity, finding.value) == ("option_unsafe", "warning", conf)
    assert (
        "large_segment_size_mb:13; the driver makes handles in multiples of 2 MiB" in finding.text
    )
    assert lint_conf("expandable_segments:True,large_segment_size_mb:14").findings == ()
    assert lint_conf("large_segment_size_mb:13").findings == ()


def test_options_without_effect_are_notes() -> None:
    conf = "garbage_collection_threshold:0.8,max_non_split_rounding_mb:64"
    report = lint_conf(conf)
    assert report.passed
    assert {finding.check for finding in report.findings} == {"option_inert"}
    assert len(report.findings) == 2
    assert lint_conf("garbage_collection_threshold:0.8,per_process_memory_fraction:0.5").passed


def test_lint_warns_of_an_unreadable_reserve() -> None:
    conf = "expandable_segments:True,expandable_segments_reserve:512M"
    ((check, text),) = found(conf)
    assert check == "option_ignored"
    assert "neither a share of the device nor GiB" in text
    assert found("expandable_segments:True,expandable_segments_reserve:20G") == []


def test_an_unknown_release_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"2\.99"):
        lint_conf("", "2.99")


@given(
    st.lists(
        st.sampled_from(
            [
                "max_split_size_mb:64",
                "expandable_segments:True",
                "garbage_collection_threshold:0.5",
                "roundup_power2_divisions:4",
                "per_process_memory_fraction:0.5",
                "large_segment_size_mb:40",
                "backend:native",
                "nothing:1",
            ]
        ),
        max_size=4,
        unique=True,
    ),
    st.sampled_from([*RELEASES]),
)
def test_option_check_refuses_what_the_parser_refuses(options: list[str], torch: str) -> None:
    conf = ",".join(options)
    try:
        parse_conf(conf, RELEASES[torch])
        is_taken = True
    except ConfigError:
        is_taken = False
    refused = [each for each in lint_conf(conf, torch).findings if each.check == "option_refused"]
    assert bool(refused) is not is_taken
    if refused:
        taking = {torch for torch in RELEASES if not found_refused(conf, torch)}
        assert torch not in taking


def found_refused(conf: str, torch: str) -> bool:
    return any(check == "option_refused" for check, _ in found(conf, torch))


# -- settings of a recording ---------------------------------------------------------------


def test_recorded_settings_are_checked_for_the_recorded_release(recorded: Record) -> None:
    conf = "expandable_segments:True,max_split_size_mb:64"
    finding = only(about(recorded(program, "1GiB", conf)))
    assert (finding.check, finding.value) == ("option_unsafe", conf)


def test_a_known_fraction_gives_the_threshold_its_effect(recorded: Record) -> None:
    recording = recorded(program, "1GiB", "garbage_collection_threshold:0.5")
    assert [each.check for each in about(recording)] == ["option_inert"]
    marks = (Mark(0, MarkKind.FRACTION, 0.5),)
    result = replace(recording, devices=(replace(recording.devices[0], marks=marks),))
    assert about(result) == ()


def test_settings_that_their_string_does_not_make_were_set_by_a_call(recorded: Record) -> None:
    recording = recorded(program, "1GiB", "max_split_size_mb:64")
    assert recording.settings is not None
    changed = replace(recording.settings, garbage_collection_threshold=0.5)
    other = replace(recording, settings=changed)
    finding = only(about(other))
    assert finding.check == "settings"
    assert finding.value == "garbage_collection_threshold: 0.5"
    # A replay repeats recorded calls.
    marks = (Mark(1, MarkKind.SETTINGS, "max_split_size_mb:64"),)
    noted = replace(other, devices=(replace(other.devices[0], marks=marks),))
    assert about(noted) == ()


def test_expandable_segments_that_the_platform_refused_are_seen_in_the_segments(
    recorded: Record,
) -> None:
    recording = recorded(program, "1GiB")
    assert recording.settings is not None
    said = replace(recording.settings, conf="expandable_segments:True")
    # PyTorch on Windows: the string says True, the value is False.
    finding = only(about(replace(recording, settings=said)))
    assert (finding.check, finding.value) == ("settings", "expandable_segments: False")
    on = replace(said, expandable_segments=True)
    finding = only(about(replace(recording, settings=on)))
    assert finding.text == "expandable_segments is True, but none of 2 new segments is expandable"
    off = recorded(program, "1GiB", "expandable_segments:True")
    assert off.settings is not None
    other = replace(off.settings, conf="", expandable_segments=False)
    finding = only(about(replace(off, settings=other)))
    assert "is False at the end, but there are expandable segments" in finding.text


def test_a_recording_of_the_asynchronous_backend_is_checked(recorded: Record) -> None:
    recording = recorded(program, "1GiB")
    assert recording.settings is not None
    conf = "backend:cudaMallocAsync"
    found = about(replace(recording, settings=replace(recording.settings, conf=conf)))
    assert [(each.check, each.value) for each in found] == [("option_unmodelled", conf)]


def test_recorded_conf_that_the_given_release_refuses_is_an_error(
    recorded: Record,
) -> None:
    conf = "large_segment_size_mb:40"
    recording = recorded(program, "1GiB", conf)
    found = about(recording, torch_version="2.9")
    assert [(each.check, each.value) for each in found] == [
        ("option_refused", conf),
        ("release", "2.9"),
    ]
    with pytest.raises(RecordingError, match=r"refused by release 2\.9"):
        replay(recording, torch_version="2.9")


def test_given_conf_is_checked_for_the_given_release(recorded: Record) -> None:
    recording = recorded(program, "1GiB", torch_version="2.9")
    asked = "per_process_memory_fraction:0.9"
    assert [each.check for each in about(recording, asked)] == ["option_refused"]
    assert lint(recording, asked).asked == asked
    newer = about(recording, asked, torch_version="2.10")
    assert [each.check for each in newer] == ["release"]
