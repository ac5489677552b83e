from shoal.storage.progress import Progress, keeping, note_moved, note_retry


def test_notes_go_to_the_innermost_record_and_back_to_the_outer_one():
    outer, inner = Progress(lambda: 1.0), Progress(lambda: 2.0)
    with keeping(outer):
        note_moved(1)
        with keeping(inner):
            note_moved(10)
            note_retry()
        note_moved(100)
    note_moved(1_000)
    assert (outer.num_bytes, outer.num_retries) == (101, 0)
    assert (inner.num_bytes, inner.num_retries) == (10, 1)


def test_the_first_byte_is_a_byte_and_the_first():
    times = iter([5.0, 6.0])
    progress = Progress(lambda: next(times))
    progress.moved(0)
    assert progress.first_byte_at_s is None
    progress.moved(1)
    progress.moved(1)
    assert progress.first_byte_at_s == 5.0
