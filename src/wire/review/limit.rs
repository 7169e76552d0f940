//! The time that the API server gives a review.

use std::time::Duration;

/// The longest time that is obeyed; a webhook's `timeoutSeconds` is 30 at most.
const LONGEST: Duration = Duration::from_secs(300);
/// Units of Go's durations (`time.Duration.String`).
const UNITS: [(&str, f64); 7] = [
    ("ns", 1e-9),
    ("us", 1e-6),
    ("\u{b5}s", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
];

/// The `timeout` of a review's query, in Go's notation, such as `10s` or `1m30s`. `None` if there is
/// none, or it cannot be read.
pub fn limit(query: &str) -> Option<Duration> {
    let mut values = query.split('&').filter_map(|pair| pair.strip_prefix("timeout="));
    let mut rest = values.next_back().filter(|value| !value.is_empty())?;
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let is_number = |c: char| c.is_ascii_digit() || c == '.';
        let at = rest.find(|c| !is_number(c))?;
        let (number, behind) = rest.split_at(at);
        let unit = behind.find(is_number).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(unit);
        let (_, size) = UNITS.iter().find(|(name, _)| *name == unit)?;
        seconds += number.parse::<f64>().ok()? * size;
        rest = behind;
    }
    let limit = Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST);
    (!limit.is_zero()).then(|| limit.min(LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_read_as_go_writes_it() {
        for (query, wanted) in [
            ("timeout=10s", Some(10_000)),
            ("a=b&timeout=1m30s", Some(90_000)),
            ("timeout=1.5s", Some(1_500)),
            ("timeout=250ms", Some(250)),
            ("timeout=2h0m0s", Some(300_000)),
            ("timeout=3s&timeout=4s", Some(4_000)),
            ("timeout=0s", None),
            ("timeout=", None),
            ("timeout=10", None),
            ("timeout=s", None),
            ("timeout=1x", None),
            ("timeout=1..2s", None),
            ("timeouts=10s", None),
            ("", None),
        ] {
            assert_eq!(limit(query), wanted.map(Duration::from_millis), "{query}");
        }
    }
}
