from pathlib import Path

from numba import config

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


def test_without_a_folder_to_write_kernels_are_compiled_all_the_same(monkeypatch, caplog):
    monkeypatch.setattr(config, "CACHE_DIR", "/proc/nobody/writes/here")
    assert compiler._cache_directory() == ""
    (said,) = caplog.messages
    assert "/proc/nobody" in said
    assert "XDG_CACHE_HOME" in said
    monkeypatch.setattr(compiler, "_CACHE_DIRECTORY", "")

    def doubled(x):
        return 2 * x

    assert compiler.kernel(doubled)(21) == 42


def test_without_a_home_folder_it_is_the_same(monkeypatch, caplog):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(compiler, "_cache_base", no_home)
    assert compiler._cache_directory() == ""
    assert "Could not determine home" in caplog.messages[0]
