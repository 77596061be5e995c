"""Reads timelines with Perfetto's own protobuf classes, without its trace processor."""

import collections
import json
import tarfile

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as perfetto

MONOTONIC, BOOTTIME, REALTIME = 3, 6, 1
Event = perfetto.TrackEvent


def read(path):
    """The manifest of an archive, and the trace of each of its files by name."""
    with tarfile.open(path) as archive:
        files = {member.name: archive.extractfile(member).read() for member in archive}
    text = files.pop("perfetto_manifest.json").decode()
    assert text.startswith('{"perfetto_manifest"')  # by which Perfetto recognizes it
    return json.loads(text)["perfetto_manifest"], {name: perfetto.Trace.FromString(data) for name, data in files.items()}


def check_manifest(manifest, names):
    """The rules of https://perfetto.dev/docs/reference/perfetto-manifest."""
    assert set(manifest) <= {"version", "trace_time", "files", "attributes"}
    assert manifest["version"] == 1
    files = {file["path"]: file for file in manifest["files"]}
    assert sorted(files) == sorted(names)
    clocks = {"REALTIME", "REALTIME_COARSE", "MONOTONIC", "MONOTONIC_COARSE", "MONOTONIC_RAW", "BOOTTIME"}
    assert manifest["trace_time"]["clock"] in clocks and manifest["trace_time"]["file"] in files
    for file in files.values():
        assert set(file) <= {"path", "machine", "clocks"} and file["machine"]["name"]
        relation = file.get("clocks")
        if relation:
            assert set(relation) <= {"clock", "sync_to", "offset_ns"} and relation["clock"] in clocks
            assert relation["sync_to"]["file"] in files and relation["sync_to"]["clock"] in clocks
            assert isinstance(relation["offset_ns"], int) and -2**63 < relation["offset_ns"] < 2**63
    for key, value in manifest.get("attributes", {}).items():
        assert key and isinstance(value, (str, int))


def check_trace(trace):
    """Checks sequences, clocks, tracks, names, nesting and counters. Returns how often each (track, name, type) occurs, and the values of
    each counter."""
    sequences = {packet.trusted_packet_sequence_id for packet in trace.packet}
    assert len(sequences) == 1 and 0 not in sequences
    snapshot = trace.packet[0].clock_snapshot
    assert {clock.clock_id for clock in snapshot.clocks} == {MONOTONIC, BOOTTIME, REALTIME}
    assert snapshot.primary_trace_clock == MONOTONIC
    first = trace.packet[1]
    assert first.first_packet_on_sequence and first.sequence_flags == perfetto.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    assert first.trace_packet_defaults.timestamp_clock_id == MONOTONIC
    names = {entry.iid: entry.name for entry in first.interned_data.event_names}
    arguments = {entry.iid: entry.name for entry in first.interned_data.debug_annotation_names}
    assert 0 not in names and 0 not in arguments
    tracks, open_spans = {}, collections.defaultdict(list)
    counts, counters, last = collections.Counter(), collections.defaultdict(list), {}
    for packet in trace.packet[2:]:
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            assert track.uuid and track.uuid not in tracks
            if not track.HasField("process"):
                assert tracks[track.parent_uuid].HasField("process")
            tracks[track.uuid] = track
            continue
        event = packet.track_event
        assert packet.HasField("track_event") and packet.sequence_flags == perfetto.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        track = tracks[event.track_uuid]
        assert packet.timestamp >= last.get(event.track_uuid, 0)
        last[event.track_uuid] = packet.timestamp
        if event.type == Event.TYPE_COUNTER:
            assert track.HasField("counter") and event.counter_value >= 0
            counters[track.name].append(event.counter_value)
            continue
        assert not track.HasField("counter")
        for annotation in event.debug_annotations:
            assert arguments[annotation.name_iid] and annotation.HasField("int_value")
        if event.type == Event.TYPE_SLICE_END:
            open_spans[event.track_uuid].pop()
        else:
            counts[track.name or track.thread.thread_name, names[event.name_iid], event.type] += 1
        if event.type == Event.TYPE_SLICE_BEGIN:
            open_spans[event.track_uuid].append(event.name_iid)
    # Gathers that a step has started and the next one waits for may be under way.
    assert all(not spans or tracks[uuid].name == "all_gather" for uuid, spans in open_spans.items()), open_spans
    return counts, counters
