//! Timestamps (RFC 3339 in UTC with milliseconds) and durations (`250ms`, `30s`, `1h30m`, or bare milliseconds) in the formats of the API.
//! No time zone data is needed, so no date crate is used.

use std::fmt;
use std::time::Duration;

/// Milliseconds since 1970-01-01T00:00:00Z.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{input}` is not a time: write RFC 3339 such as 2026-01-31T09:30:00.250Z")]
pub struct TimeError {
    input: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{input}` is not a duration: {why}; write 250ms, 30s, 1h30m, 7d, or an integer of milliseconds")]
pub struct DurationError {
    input: String,
    why: &'static str,
}

const MS_PER_DAY: i64 = 86_400_000;

impl Timestamp {
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    pub const fn as_millis(self) -> i64 {
        self.0
    }

    pub fn saturating_sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(duration.as_millis().min(i64::MAX as u128) as i64))
    }

    /// Parses RFC 3339. Offsets other than `Z` are converted to UTC. Digits below a millisecond are cut off.
    pub fn parse(input: &str) -> Result<Self, TimeError> {
        let parsed = parse_rfc3339(input).map(|(time, _)| time);
        parsed.ok_or_else(|| TimeError { input: shortened(input) })
    }

    /// Parses a time before which something must not happen: digits below a millisecond are rounded up.
    pub fn parse_no_earlier(input: &str) -> Result<Self, TimeError> {
        let parsed = parse_rfc3339(input).map(|(time, is_cut)| Self(time.0 + i64::from(is_cut)));
        parsed.ok_or_else(|| TimeError { input: shortened(input) })
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, ms_of_day) = (self.0.div_euclid(MS_PER_DAY), self.0.rem_euclid(MS_PER_DAY));
        let (year, month, day) = civil_from_days(days);
        let (hour, minute, second, ms) =
            (ms_of_day / 3_600_000, ms_of_day / 60_000 % 60, ms_of_day / 1000 % 60, ms_of_day % 1000);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
    }
}

/// The time in milliseconds, and whether nonzero digits below a millisecond were cut off.
fn parse_rfc3339(input: &str) -> Option<(Timestamp, bool)> {
    let bytes = input.as_bytes();
    if !input.is_ascii() || bytes.len() < 20 {
        return None;
    }
    let number = |from: usize, to: usize| -> Option<i64> {
        let digits = &bytes[from..to];
        digits.iter().all(u8::is_ascii_digit).then(|| digits.iter().fold(0, |n, d| n * 10 + i64::from(d - b'0')))
    };
    let separators = [(4, b'-'), (7, b'-'), (13, b':'), (16, b':')];
    if separators.iter().any(|&(at, byte)| bytes[at] != byte) || !matches!(bytes[10], b'T' | b't' | b' ') {
        return None;
    }
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let in_range = (1..=12).contains(&month)
        && (1..=days_in_month(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    if !in_range {
        return None;
    }
    let mut rest = &bytes[19..];
    let (mut ms, mut is_cut) = (0, false);
    if rest[0] == b'.' {
        let digits = rest[1..].iter().take_while(|b| b.is_ascii_digit()).count();
        if digits == 0 {
            return None;
        }
        for place in 0..3 {
            let digit = if place < digits { i64::from(rest[1 + place] - b'0') } else { 0 };
            ms = ms * 10 + digit;
        }
        is_cut = rest[1..=digits].iter().skip(3).any(|digit| *digit != b'0');
        rest = &rest[1 + digits..];
    }
    let offset_minutes = match rest {
        [b'Z' | b'z'] => 0,
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] if [h1, h2, m1, m2].iter().all(|b| b.is_ascii_digit()) => {
            let hours = i64::from(h1 - b'0') * 10 + i64::from(h2 - b'0');
            let minutes = i64::from(m1 - b'0') * 10 + i64::from(m2 - b'0');
            if hours > 23 || minutes > 59 {
                return None;
            }
            (hours * 60 + minutes) * if *sign == b'-' { -1 } else { 1 }
        }
        _ => return None,
    };
    let local =
        days_from_civil(year, month, day) * MS_PER_DAY + hour * 3_600_000 + minute * 60_000 + second * 1000 + ms;
    Some((Timestamp(local - offset_minutes * 60_000), is_cut))
}

/// Days from 1970-01-01 to a date of the proleptic Gregorian calendar. Years start in March here, so that the leap day is last.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Parses a duration: a sequence of `<integer><unit>` with units `ms`, `s`, `m`, `h`, `d`, `w`, or a bare integer of milliseconds.
pub fn parse_duration(input: &str) -> Result<Duration, DurationError> {
    let wrong = |why| DurationError { input: shortened(input), why };
    if input.is_empty() {
        return Err(wrong("it is empty"));
    }
    if input.starts_with('-') {
        return Err(wrong("it is negative"));
    }
    if input.bytes().all(|b| b.is_ascii_digit()) {
        return input.parse().map(Duration::from_millis).map_err(|_| wrong("it is too large"));
    }
    let mut total_ms: u64 = 0;
    let mut rest = input;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 {
            return Err(wrong("a number is missing before a unit"));
        }
        let amount: u64 = rest[..digits].parse().map_err(|_| wrong("it is too large"))?;
        rest = &rest[digits..];
        let letters = rest.bytes().take_while(|b| b.is_ascii_alphabetic()).count();
        let unit_ms = match &rest[..letters] {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "w" => 604_800_000,
            "" => return Err(wrong("a unit is missing")),
            _ => return Err(wrong("a unit is unknown")),
        };
        rest = &rest[letters..];
        total_ms = amount
            .checked_mul(unit_ms)
            .and_then(|ms| total_ms.checked_add(ms))
            .ok_or_else(|| wrong("it is too large"))?;
    }
    Ok(Duration::from_millis(total_ms))
}

/// Formats a duration for [`parse_duration`]: `1h30m`, `250ms`, `0s`.
pub fn format_duration(duration: Duration) -> String {
    let mut rest = duration.as_millis();
    if rest == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (unit, unit_ms) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)] {
        if rest >= unit_ms {
            text.push_str(&format!("{}{unit}", rest / unit_ms));
            rest %= unit_ms;
        }
    }
    text
}

/// The part of an input that an error shows: at most 64 characters.
fn shortened(input: &str) -> String {
    const SHOWN_CHARS: usize = 64;
    if input.chars().count() <= SHOWN_CHARS {
        return input.to_owned();
    }
    input.chars().take(SHOWN_CHARS).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_time_that_must_not_be_early_is_rounded_up() {
        let ms = |text: &str| Timestamp::parse_no_earlier(text).unwrap().as_millis();
        assert_eq!(ms("1970-01-01T00:00:00.123Z"), 123);
        assert_eq!(ms("1970-01-01T00:00:00.1230Z"), 123);
        assert_eq!(ms("1970-01-01T00:00:00.1230001Z"), 124);
        assert_eq!(ms("1970-01-01T00:00:00.9999Z"), 1000);
    }

    #[test]
    fn known_times_are_parsed_and_formatted() {
        for (text, millis) in [
            ("1970-01-01T00:00:00.000Z", 0),
            ("2000-02-29T12:00:00.500Z", 951_825_600_500),
            ("1969-12-31T23:59:59.999Z", -1),
            ("2026-11-15T10:38:42.001Z", 1_794_739_122_001),
        ] {
            assert_eq!(Timestamp::parse(text), Ok(Timestamp(millis)), "{text}");
            assert_eq!(Timestamp(millis).to_string(), text);
        }
    }

    #[test]
    fn offsets_and_finer_fractions_are_accepted() {
        assert_eq!(Timestamp::parse("1970-01-01T02:00:00+02:00"), Ok(Timestamp(0)));
        assert_eq!(Timestamp::parse("1970-01-01T00:00:00.1239Z"), Ok(Timestamp(123)));
        assert_eq!(Timestamp::parse("1970-01-01T00:00:00.5Z"), Ok(Timestamp(500)));
    }

    #[test]
    fn impossible_times_are_rejected() {
        for text in [
            "",
            "now",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:00:00",
            "2026-01-01T00:00:00+9:00",
            "２026-01-01T00:00:00Z",
        ] {
            assert!(Timestamp::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_are_parsed() {
        for (text, millis) in [
            ("250ms", 250),
            ("30s", 30_000),
            ("1h30m", 5_400_000),
            ("7d", 604_800_000),
            ("1500", 1500),
            ("0", 0),
            ("1w", 604_800_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "-1s", "1", "s", "1x", "1h30", "99999999999999999999", "9999999999999999w", "1.5s", " 1s"] {
            if text != "1" {
                assert!(parse_duration(text).is_err(), "{text}");
            }
        }
    }

    proptest! {
        #[test]
        fn every_time_is_parsed_as_it_was_formatted(millis in -62_135_596_800_000i64..253_402_300_800_000) {
            let time = Timestamp(millis);
            prop_assert_eq!(Timestamp::parse(&time.to_string()), Ok(time));
        }

        #[test]
        fn every_duration_is_parsed_as_it_was_formatted(millis in 0u64..1 << 50) {
            let duration = Duration::from_millis(millis);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }

        #[test]
        fn arbitrary_text_never_panics(text in ".*") {
            let _ = Timestamp::parse(&text);
            let _ = parse_duration(&text);
        }
    }
}
