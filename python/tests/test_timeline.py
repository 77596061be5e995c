"""Timelines of a Python program, read with Perfetto's own classes."""

from launch import run
from perfetto_files import Event, check_manifest, check_trace, read


def test_two_ranks(tmp_path):
    archive = tmp_path / "t.tar"
    run("timeline.py", ranks=2, options=("--timeline", str(archive), "--timeline-steps", "3:5"))
    manifest, traces = read(archive)
    check_manifest(manifest, traces)
    assert sorted(traces) == ["rank0.pftrace", "rank1.pftrace"]
    assert len({trace.packet[0].trusted_packet_sequence_id for trace in traces.values()}) == 2
    for trace in traces.values():
        counts, counters = check_trace(trace)
        for phase in ("forward", "backward", "step", "norm", "wait for reductions"):
            assert counts["engine", phase, Event.TYPE_SLICE_BEGIN] == 3, counts
        assert counts["engine", "end of step", Event.TYPE_INSTANT] == 3
        assert counts["reduce_scatter", "reduce_scatter", Event.TYPE_SLICE_BEGIN] >= 3
        assert len(counters["parameters"]) == 4 and min(counters["parameters"]) > 0, counters
