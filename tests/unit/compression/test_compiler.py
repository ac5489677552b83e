from pathlib import Path

from shoal.compression.kernels import compiler, sums


def test_a_change_in_any_source_is_another_version(tmp_path):
    a, b = tmp_path / "a.py", tmp_path / "b.py"
    a.write_text("1")
    b.write_text("2")
    before = compiler.sources_digest([a, b])
    assert compiler.sources_digest([b, a]) == before
    b.write_text("3")
    assert compiler.sources_digest([a, b]) != before


def test_compiled_kernels_are_kept_under_the_version_of_all_sources():
    sources = Path(compiler.__file__).parent.glob("*.py")
    cache_path = getattr(sums.sum_chunks, "stats").cache_path  # noqa: B009 - numba is untyped here
    assert f"kernels-{compiler.sources_digest(sources)}" in cache_path
