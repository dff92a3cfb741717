"""How different a generation's environments are: Vendi score and repeats.

In: sources as they are played, MinHash signatures. Out: shares in (0, 1]. Called by streams/design (similarity to earlier
designs) and streams/batch (Vendi, repeats). Pure; scikit-learn is imported at the first call. Differs from the Vendi paper's
examples in the embedding only: TF-IDF of character 3- to 5-grams over text whose names and literals are normalised, so that
renaming variables is no diversity.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from infra.sourcetext import normalise

Signature = Sequence[int] | NDArray[np.uint64]
REPEAT_SIMILARITY = 0.8
SMALLEST_EIGENVALUE = 1e-12


def vendi_share(sources: Sequence[str]) -> float:
    """Vendi score / n of the sources: 1 where all are orthogonal, 1/n where all are equal, 0 for none."""
    if not sources:
        return 0.0
    return vendi_score(similarity_kernel([normalise(source) for source in sources])) / len(sources)


def similarity_kernel(texts: Sequence[str]) -> NDArray[np.float64]:
    """Cosine similarity [n, n] of the texts' TF-IDF vectors of character 3- to 5-grams; equal texts are 1 even when empty."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    padded = [f"^^{text}$$" for text in texts]  # three characters at least, so that no vocabulary is empty
    vectors = TfidfVectorizer(analyzer="char", ngram_range=(3, 5)).fit_transform(padded)
    kernel: NDArray[np.float64] = np.asarray((vectors @ vectors.T).todense(), dtype=np.float64)
    return kernel


def vendi_score(kernel: NDArray[np.float64]) -> float:
    """exp(-sum l log l) over the eigenvalues l of K / n (Friedman and Dieng, 2023, definition 3.1); between 1 and n."""
    eigenvalues = np.linalg.eigvalsh(kernel / len(kernel))
    kept = eigenvalues[eigenvalues > SMALLEST_EIGENVALUE]
    return float(np.exp(-np.sum(kept * np.log(kept))))


def nearest(signature: Signature, earlier: Sequence[Signature] | NDArray[np.uint64]) -> tuple[float, int]:
    """The largest MinHash similarity (share of equal positions) to one of `earlier` [n, length], and its place: the first of
    equals. (0, -1) where there is none.

    All at once: over a long run there are tens of thousands of earlier designs to each new one.
    """
    if len(earlier) == 0 or len(signature) == 0:
        return 0.0, -1
    same = np.asarray(earlier, dtype=np.uint64) == np.asarray(signature, dtype=np.uint64)
    similarities = same.mean(axis=1)
    place = int(similarities.argmax())
    return float(similarities[place]), place


def repeat_share(similarities: Sequence[float]) -> float:
    """Share of designs whose similarity to an earlier one is at least .8; 0 for none."""
    if not similarities:
        return 0.0
    return sum(similarity >= REPEAT_SIMILARITY for similarity in similarities) / len(similarities)
