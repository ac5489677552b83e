import subprocess
import sys


def test_warming_up_says_nothing():
    done = subprocess.run(
        [sys.executable, "-m", "shoal.compression.warm_up"],
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_package_imports_no_torch():
    program = "import shoal.compression, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
