//! Measurements over rounds.

/// The measurements of one figure, one per round.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series(Vec<f64>);

impl Series {
    pub(crate) fn add(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The median; NaN without measurements.
    pub(crate) fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let (Some(&low), Some(&high)) =
            (sorted.get(sorted.len().saturating_sub(1) / 2), sorted.get(sorted.len() / 2))
        else {
            return f64::NAN;
        };
        f64::midpoint(low, high)
    }

    /// The mean; NaN without measurements.
    pub(crate) fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len() as f64
    }

    /// The excess of each round over the same round of `base`.
    pub(crate) fn beyond(&self, base: &Self) -> Self {
        Self(self.0.iter().zip(&base.0).map(|(value, base)| value - base).collect())
    }

    /// Each round as a multiple of the same round of `base`.
    pub(crate) fn against(&self, base: &Self) -> Self {
        Self(self.0.iter().zip(&base.0).map(|(value, base)| value / base).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(values: &[f64]) -> Series {
        Series(values.to_vec())
    }

    #[test]
    fn the_median_is_the_middle_or_between_the_two() {
        assert_eq!(series(&[3.0, 1.0, 9.0]).median(), 3.0);
        assert_eq!(series(&[4.0, 1.0, 9.0, 2.0]).median(), 3.0);
        assert!(series(&[]).median().is_nan());
    }

    #[test]
    fn rounds_are_compared_with_their_own_round() {
        let (direct, ours) = (series(&[1.0, 10.0, 2.0]), series(&[2.0, 11.0, 8.0]));
        assert_eq!(ours.beyond(&direct).median(), 1.0);
        assert_eq!(ours.against(&direct).median(), 2.0);
    }
}
