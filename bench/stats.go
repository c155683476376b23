package main

import (
	"math"
	"slices"
)

// A spread is the median of some figures, and the smallest and largest. It is of no figures if all three are NaN.
type spread struct{ median, min, max float64 }

func spreadOf(figures []float64) spread {
	if len(figures) == 0 {
		return spread{math.NaN(), math.NaN(), math.NaN()}
	}
	sorted := slices.Sorted(slices.Values(figures))
	n := len(sorted)
	return spread{(sorted[(n-1)/2] + sorted[n/2]) / 2, sorted[0], sorted[n-1]}
}

// ratios divides the figures of the same rounds by each other: what disturbed a round disturbed both.
func ratios(ours, theirs []float64) []float64 {
	quotients := make([]float64, min(len(ours), len(theirs)))
	for i := range quotients {
		quotients[i] = ours[i] / theirs[i]
	}
	return quotients
}
