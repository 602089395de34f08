"""What the tutorials' tests compare: a page that is wrong is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tutorials.pages import PageError, blocks_of, difference_of, run_page

PAGE = """
``` { .python title="part/twice.py" }
def twice(x):
    return 2 * x
```

```bash
cd part
export WORD=hello
```

```bash
echo $WORD $(ls); sleep 600 &
```

```text
hello twice.py
```

```python
x = 20
```

```python
from twice import twice  # the shell's folder is the folder of Python, too
print("twice is", twice(x) + 1.5)
```

```text
twice … -40.25
```

<!-- test: exit 3 -->
```bash
echo before >&2; exit 3
```

```text
before
```

<!-- test: skip, it needs a network -->
```bash
exit 1
```
"""


def write(folder: Path, text: str = PAGE) -> Path:
    page = folder / "page.md"
    page.write_text(text)
    return page


def test_a_page_that_is_right(tmp_path: Path) -> None:
    (tmp_path / "reader").mkdir()
    run_page(write(tmp_path), tmp_path / "reader", {"x = 20": "x = 1"})


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("twice.py\n", "thrice.py\n", r"page.md:\d+: 'hello thrice.py' is not there"),
        ("exit 3\n", "exit 2\n", "exit code 2"),
        ("export WORD=hello", "export WORD=hello; false", "exit code 1"),
        ("return 2 * x", "return 2 * y", "name 'y' is not defined"),
        ("x = 20", "raise SystemExit", "SystemExit"),
        ("x = 20", "import os; os._exit(0)", "Python ended"),
        ("skip, it", "slow, it", "neither 'skip, WHY' nor 'exit CODE'"),
        ("skip, it needs a network", "skip", "neither"),
    ],
)
def test_a_page_that_is_wrong(old: str, new: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "reader").mkdir()
    assert old in PAGE
    with pytest.raises(PageError, match=said):
        run_page(write(tmp_path, PAGE.replace(old, new)), tmp_path / "reader")


def test_a_replacement_that_no_block_needs(tmp_path: Path) -> None:
    with pytest.raises(PageError, match="no block has '--n-trials 7'"):
        blocks_of(write(tmp_path), {"--n-trials 7": "--n-trials 1"})


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a 1\nb", "a 20.5\nb\n", True),
        ("a 1", "a one", False),
        ("a", "a b", False),
        ("b", "a b", False),
        ("a …", "a b c", True),
        ("… c", "a b c", True),
        ("a … c", "a b c c", True),
        ("a … c", "a b c d", False),
        ("a … b … d", "a d b", False),
        ("┏━━━┓\n a | +1.5e-3", "┏━━━━━━━┓\n a     | -7", True),
        ("net64", "net65", False),
        ("at 12:30, 4,096 steps.", "at 07:01, 81 steps.", True),
    ],
)
def test_numbers_and_ellipses(shown: str, printed: str, same: bool) -> None:
    assert (difference_of(shown, printed) == "") == same
