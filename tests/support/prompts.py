"""Twenty real prompts for the real model, of a few tokens to more than its sliding window of 512."""

from __future__ import annotations

_GETTYSBURG = """Four score and seven years ago our fathers brought forth on this continent, a new nation,
conceived in Liberty, and dedicated to the proposition that all men are created equal. Now we are engaged in a
great civil war, testing whether that nation, or any nation so conceived and so dedicated, can long endure. We are
met on a great battle-field of that war. We have come to dedicate a portion of that field, as a final resting place
for those who here gave their lives that that nation might live. It is altogether fitting and proper that we should
do this. But, in a larger sense, we can not dedicate -- we can not consecrate -- we can not hallow -- this ground.
The brave men, living and dead, who struggled here, have consecrated it, far above our poor power to add or
detract. The world will little note, nor long remember what we say here, but it can never forget what they did
here. It is for us the living, rather, to be dedicated here to the unfinished work which they who fought here have
thus far so nobly advanced. It is rather for us to be here dedicated to the great task remaining before us -- that
from these honored dead we take increased devotion to that cause for which they gave the last full measure of
devotion -- that we here highly resolve that these dead shall not have died in vain -- that this nation, under God,
shall have a new birth of freedom -- and that government of the people, by the people, for the people, shall not
perish from the earth."""

REAL_PROMPTS = (
    "The capital of France is",
    "Water boils at a temperature of",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a small village by the sea, there lived an old fisherman who",
    "Ingredients: two eggs, a cup of flour, a pinch of salt, half a cup of milk.\nMethod: First,",
    "Q: How many days are there in a leap year?\nA:",
    "The three laws of motion were first stated by",
    '{"name": "Ada", "born": 1815, "fields": ["mathematics",',
    "SELECT name, COUNT(*) FROM orders JOIN customers ON",
    "To be, or not to be, that is the question:\nWhether 'tis nobler in the mind to suffer",
    "Dear Sir or Madam,\n\nI am writing to complain about the",
    "1, 1, 2, 3, 5, 8, 13,",
    "La capitale de l'Italie est Rome et celle de l'Espagne est",
    "import numpy as np\n\n# Compute the mean of every column\n",
    "Breaking news: scientists at the university announced on Monday that",
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
    "A: Have you seen the film?\nB: No, not yet. Is it any good?\nA: Well,",
    "The causes of the First World War are many. Historians point to alliances, militarism and nationalism. " * 2,
    _GETTYSBURG,
    _GETTYSBURG + "\n\n" + _GETTYSBURG + "\n\nFour score and seven",
)
