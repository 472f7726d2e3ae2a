//! [`Scale`]: an axis, which has a place for each value, and the numbers that stand at it.

/// Ratio of the largest to the smallest value from which on a scale goes by powers.
const BY_POWERS: f64 = 25.0;

/// Most numbers at an axis.
const MOST_TICKS: usize = 7;

/// An axis from one place to another.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    by_powers: bool,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    /// Round numbers around the values. It begins with zero, or goes by powers where the values
    /// are far apart.
    pub(super) fn of(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (low, high) = values
            .filter(|value| value.is_finite() && *value > 0.0)
            .fold((f64::INFINITY, 0.0_f64), |(low, high), v| (low.min(v), high.max(v)));
        if high == 0.0 {
            return Self { by_powers: false, low: 0.0, high: 1.0, from, to };
        }
        if high / low <= BY_POWERS {
            let step = nice(high / 4.0);
            return Self {
                by_powers: false,
                low: 0.0,
                high: (high / step).ceil() * step,
                from,
                to,
            };
        }
        Self::by_powers(low, high, from, to)
    }

    /// A scale by powers, from round numbers below to round numbers above.
    fn by_powers(low: f64, high: f64, from: f64, to: f64) -> Self {
        let up = nice(high);
        let down = 1.0 / nice(1.0 / low);
        Self { by_powers: true, low: down, high: up.max(down * 2.0), from, to }
    }

    /// A scale for sizes and counts, exactly from the first to the last: by powers, unless the first is 0.
    pub(super) fn exact(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (low, high) = values
            .filter(|value| value.is_finite())
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
        let by_powers = low > 0.0;
        // There is no value, or only one.
        let (low, high) = if low < high { (low, high) } else { (0.5, 2.0) };
        Self { by_powers, low, high, from, to }
    }

    pub(super) fn is_by_powers(&self) -> bool {
        self.by_powers
    }

    /// The place of a value; of one beyond the axis, its end.
    pub(super) fn at(&self, value: f64) -> f64 {
        let value = value.clamp(self.low, self.high);
        let share = if self.by_powers {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + share * (self.to - self.from)
    }

    /// The numbers that stand at the axis.
    pub(super) fn ticks(&self) -> Vec<f64> {
        if !self.by_powers {
            let step = nice(self.high / 4.0);
            return (0..=(self.high / step).round() as u32).map(|n| f64::from(n) * step).collect();
        }
        let powers = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
        let within = |v: &f64| *v >= self.low * 0.999 && *v <= self.high * 1.001;
        let of = |steps: &[f64], every: usize| -> Vec<f64> {
            let each = powers.clone().step_by(every);
            let all = each.flat_map(|p| steps.iter().map(move |step| step * 10f64.powi(p)));
            all.filter(within).collect()
        };
        let choices = [(&[1.0, 2.0, 5.0][..], 1), (&[1.0], 1), (&[1.0], 2), (&[1.0], 3)];
        let mut all = choices.iter().map(|(steps, every)| of(steps, *every));
        all.find(|ticks| ticks.len() <= MOST_TICKS).unwrap_or_default()
    }
}

/// The next of 1, 2, 5, 10 ... from a positive number on.
fn nice(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    steps.iter().map(|step| step * power).find(|s| *s >= value * 0.9999).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_close_to_each_other_are_compared_from_zero_on_and_others_by_powers() {
        let near = Scale::of([5.0, 131.0, 97.0].into_iter().skip(1), 0.0, 100.0);
        assert!(!near.is_by_powers());
        assert_eq!((near.at(0.0), near.at(150.0), near.at(1e9)), (0.0, 100.0, 100.0));
        assert_eq!(near.ticks(), [0.0, 50.0, 100.0, 150.0]);
        let far = Scale::of([54.0, 4979.0, 0.0].into_iter(), 0.0, 100.0);
        assert!(far.is_by_powers() && far.at(0.0) == 0.0);
        assert_eq!(far.ticks(), [50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0]);
    }

    #[test]
    fn an_axis_of_any_values_has_places_and_few_numbers() {
        let all: [&[f64]; 6] =
            [&[], &[0.0], &[5.0], &[f64::NAN, f64::INFINITY], &[1e-9, 1e12], &[0.3, 0.31]];
        for values in all {
            for scale in [
                Scale::of(values.iter().copied(), 10.0, 20.0),
                Scale::exact(values.iter().copied(), 10.0, 20.0),
            ] {
                let places = values.iter().filter(|v| v.is_finite()).map(|v| scale.at(*v));
                assert!(places.into_iter().all(|at| (10.0..=20.0).contains(&at)), "{values:?}");
                assert!(scale.ticks().len() <= MOST_TICKS + 1, "{values:?}: {:?}", scale.ticks());
            }
        }
    }
}
