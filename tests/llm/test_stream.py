"""Text out of token bytes: characters stay whole, stop strings never show."""

from hypothesis import given
from hypothesis import strategies as st

from wireherd.llm.stream import TextStream


def collect(pieces, stops=()):
    stream = TextStream(stops)
    return [stream.feed(piece) for piece in pieces], stream.finish(), stream


def test_characters_are_never_broken():
    raw = "naïve 😀 日本".encode()
    given_out, rest, _ = collect([raw[i : i + 1] for i in range(len(raw))])
    assert "".join(given_out) + rest == "naïve 😀 日本"
    assert "\ufffd" not in "".join(given_out)
    assert given_out[2] == ""  # the first byte of ï


def test_a_character_that_never_comes_whole_is_replaced_at_the_end():
    given_out, rest, _ = collect([b"a", "é".encode()[:1]])
    assert given_out == ["a", ""]
    assert rest == "\ufffd"


def test_stop_string_over_three_tokens():
    given_out, rest, stream = collect([b"one <", b"|en", b"d|> two", b"more"], ["<|end|>"])
    assert given_out == ["one ", "", "", ""]
    assert rest == ""
    assert stream.stopped


def test_held_text_comes_out_when_it_was_no_stop():
    given_out, rest, stream = collect([b"a<|", b"e", b"x", b"<|"], ["<|end|>"])
    assert "".join(given_out) == "a<|ex"
    assert rest == "<|"
    assert not stream.stopped


def test_the_earliest_of_several_stops_wins():
    given_out, _, _ = collect([b"abcdef"], ["ef", "cd"])
    assert given_out == ["ab"]


@given(st.text(max_size=40), st.lists(st.text(min_size=1, max_size=4), max_size=3), st.integers(1, 7))
def test_any_cut_gives_the_text_before_the_first_stop(text, stops, step):
    raw = text.encode()
    given_out, rest, stream = collect([raw[i : i + step] for i in range(0, len(raw), step)], stops)
    hits = [at for stop in stops if (at := text.find(stop)) >= 0]
    got = "".join(given_out) + rest
    if hits:
        # a longer stop may complete later than a shorter one that begins after it
        assert stream.stopped
        assert text.startswith(got)
        assert not any(stop in got for stop in stops)
        assert min(hits) <= len(got)
    else:
        assert got == text
