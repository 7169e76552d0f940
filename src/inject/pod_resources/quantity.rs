//! Amounts of resources (`k8s.io/apimachinery/pkg/api/resource`).

use std::{fmt, ops::Add};

/// An amount that is not negative, in billionths, which is as exact as the API server is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Quantity(u128);

const WHOLE: u128 = 1_000_000_000;
const MILLI: u128 = WHOLE / 1_000;
/// The suffixes of multiples, and their values in billionths.
const SUFFIXES: [(&str, u128); 16] = [
    ("Ei", WHOLE << 60),
    ("Pi", WHOLE << 50),
    ("Ti", WHOLE << 40),
    ("Gi", WHOLE << 30),
    ("Mi", WHOLE << 20),
    ("Ki", WHOLE << 10),
    ("E", WHOLE * 1_000_000_000_000_000_000),
    ("P", WHOLE * 1_000_000_000_000_000),
    ("T", WHOLE * 1_000_000_000_000),
    ("G", WHOLE * 1_000_000_000),
    ("M", WHOLE * 1_000_000),
    ("k", WHOLE * 1_000),
    ("", WHOLE),
    ("m", MILLI),
    ("u", WHOLE / 1_000_000),
    ("n", 1),
];
/// The largest power of ten of an exponent, either way: no amount needs more.
const MAX_EXPONENT: u32 = 18;

impl Quantity {
    /// Parses digits, with a fraction or not, and a suffix or an exponent. Less than a billionth is
    /// rounded up. `None` for anything else, and for more than any machine has.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let text = text.strip_prefix('+').unwrap_or(text);
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, suffix) = text.split_at_checked(end)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if number.is_empty() || fraction.contains('.') {
            return None;
        }
        let unit = match SUFFIXES.iter().find(|(name, _)| *name == suffix) {
            Some((_, unit)) => Unit::times(*unit),
            None => Unit::of_exponent(suffix.strip_prefix(['e', 'E'])?)?,
        };
        let digits = format!("0{whole}{fraction}").parse::<u128>().ok()?;
        let below = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
        let nanos = digits.checked_mul(unit.times)?;
        Some(Self(nanos.div_ceil(below.checked_mul(unit.parts)?)))
    }

    /// The difference to a smaller amount; `None` if the other is larger.
    pub(crate) fn without(self, other: Self) -> Option<Self> {
        self.0.checked_sub(other.0).map(Self)
    }

    pub(crate) const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

/// Billionths that one of a number is: so many times, divided by so many parts.
struct Unit {
    times: u128,
    parts: u128,
}

impl Unit {
    const fn times(times: u128) -> Self {
        Self { times, parts: 1 }
    }

    fn of_exponent(text: &str) -> Option<Self> {
        let (is_negative, digits) = match text.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let exponent = digits.parse().ok().filter(|exponent| *exponent <= MAX_EXPONENT)?;
        let power = 10_u128.pow(exponent);
        Some(match is_negative {
            true => Self { times: WHOLE, parts: power },
            false => Self::times(WHOLE * power),
        })
    }
}

impl Add for Quantity {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

/// In the largest binary suffix up to `Gi`, whole, or in thousandths, whichever is exact.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: [&str; 6] = ["Gi", "Mi", "Ki", "", "m", "u"];
        let exact = |(name, unit): &&(&str, u128)| {
            SHOWN.contains(name) && self.0.is_multiple_of(*unit) && self.0 >= *unit
        };
        let (suffix, unit) = SUFFIXES.iter().find(exact).unwrap_or(&("n", 1));
        match self.0 {
            0 => f.write_str("0"),
            nanos => write!(f, "{}{suffix}", nanos / unit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Option<String> {
        Quantity::parse(text).map(|quantity| quantity.to_string())
    }

    #[test]
    fn quantities_are_read_and_written_exactly() {
        for (text, written) in [
            ("0", "0"),
            ("20m", "20m"),
            ("0.1", "100m"),
            (".5", "500m"),
            (".", "0"),
            ("1", "1"),
            ("1.5", "1500m"),
            ("+2", "2"),
            (" 3 ", "3"),
            ("1e3", "1000"),
            ("1E3", "1000"),
            ("1e-3", "1m"),
            ("1E", "976562500000000Ki"),
            ("32Mi", "32Mi"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("128974848", "123Mi"),
            ("129M", "129000000"),
            ("1k", "1000"),
            ("5u", "5u"),
            ("7n", "7n"),
            ("0.0000000001", "1n"),
            ("8Ei", "8589934592Gi"),
        ] {
            assert_eq!(shown(text).as_deref(), Some(written), "{text}");
        }
    }

    #[test]
    fn what_is_no_quantity_is_told() {
        for text in
            ["", "-1", "m", "1..2", "1.2.3", "1 m", "1mi", "1KB", "e3", "1e", "1e+", "1e99", "ten"]
        {
            assert_eq!(shown(text), None, "{text}");
        }
    }

    #[test]
    fn amounts_are_added_and_taken_back() {
        let [sum, one] = ["1500m", "20m"].map(|text| Quantity::parse(text).unwrap());
        assert_eq!((sum + one).to_string(), "1520m");
        assert_eq!((sum + one).without(one), Some(sum));
        assert_eq!(one.without(sum), None);
        assert!(one.without(one).is_some_and(Quantity::is_zero));
    }
}
