"""Sequences divided by what they begin with."""

import random

import pytest

from eval.running.beginnings import Stem, stems_of


def test_choices_of_a_question_share_it() -> None:
    question = (7, 7, 8, 9, 7)
    choices = [(*question, 1, 1), (*question, 2), question, (*question, 1, 3)]
    assert stems_of(choices, most=8) == [Stem(5, (2, 0, 3, 1))]
    assert stems_of(choices, most=8)[0].num_tokens(choices) == 5 + 2 + 1 + 0 + 2


def test_a_word_in_common_is_no_beginning() -> None:
    """As that of all prompts of a task: its first words, before the examples."""
    prompts = [(1, 1, number, number, number, number) for number in range(2, 6)]
    assert stems_of(prompts, most=8) == [Stem(6, (number,)) for number in range(4)]


def test_a_passage_stays_whole_beside_another_that_begins_like_it() -> None:
    passage, other = (1, 2, 3, 4, 5, 6, 7, 8), (1, 2, 3, 4, 9, 9, 9, 9)
    questions = [(*passage, 20, 21), (*passage, 20, 22), (*passage, 23), (*other, 24)]
    assert stems_of(questions, most=8) == [Stem(8, (0, 1, 2)), Stem(9, (3,))]


@pytest.mark.parametrize("seed", range(20))
def test_any_sequences(seed: int) -> None:
    draw = random.Random(seed)
    sequences = list({tuple(draw.choices(range(3), k=draw.randint(1, 12))) for _ in range(30)})
    stems = stems_of(sequences, most=6)
    assert sorted(member for stem in stems for member in stem.members) == list(range(len(sequences)))
    assert max(len(stem.members) for stem in stems) <= 6
    for stem in stems:
        begins = {sequences[member][: stem.length] for member in stem.members}
        assert len(begins) == 1 and len(begins.pop()) == stem.length
    assert sum(stem.num_tokens(sequences) for stem in stems) <= sum(map(len, sequences))
