"""The README's two commands, and what it says they print."""

import re


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """(heading above, content) of every fenced block."""
    blocks, heading, inside = [], "", None
    for line in text.splitlines():
        if line.startswith("```"):
            if inside is None:
                inside = []
            else:
                blocks.append((heading, "\n".join(inside)))
                inside = None
        elif inside is not None:
            inside.append(line)
        elif line.startswith("#"):
            heading = line.lstrip("# ").strip()
    return blocks


def test_first_block_is_one_line_that_installs_and_runs_the_demo(project_root):
    blocks = fenced_blocks((project_root / "README.md").read_text())
    first = blocks[0][1]
    assert "\n" not in first
    assert re.search(r"pip install .*\. &&.*ssdp demo$", first)
    expected = blocks[1][1]
    assert "Excess risk" in expected
    assert "privacy spent" in expected


def test_the_test_block_is_one_line_that_installs_and_tests(project_root):
    blocks = fenced_blocks((project_root / "README.md").read_text())
    (test,) = [content for heading, content in blocks if heading == "Test"]
    assert "\n" not in test
    assert re.search(r"pip install .*\[test\].*pytest", test)


def test_the_specification_in_the_readme_is_valid(project_root):
    blocks = fenced_blocks((project_root / "README.md").read_text())
    (text,) = [content for _, content in blocks if content.startswith("[data]")]
    from pipeline.spec import parse_spec

    spec = parse_spec(text)
    assert spec.domain().num_codes == 8
    assert parse_spec(spec.to_toml()) == spec
