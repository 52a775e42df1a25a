//! `strftime_now`: the date as templates write it into a system prompt, in UTC.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Formats `now`; an unknown directive is named in the error.
pub(super) fn strftime(now: SystemTime, format: &str) -> Result<String, String> {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days as i64);
    let (month_name, day_name) = (MONTHS[month - 1], DAYS[(days as usize + 4) % 7]);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);

    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        let bare = directive == Some('-');
        if bare {
            directive = chars.next();
        }
        let mut padded = |value: u64| match bare {
            true => write!(out, "{value}"),
            false => write!(out, "{value:02}"),
        };
        let written = match directive {
            Some('Y') => write!(out, "{year}"),
            Some('y') => padded(year.rem_euclid(100) as u64),
            Some('m') => padded(month as u64),
            Some('d') => padded(day),
            Some('e') => write!(out, "{day:2}"),
            Some('H') => padded(hour),
            Some('I') => padded((hour + 11) % 12 + 1),
            Some('M') => padded(minute),
            Some('S') => padded(second),
            Some('p') => out.write_str(if hour < 12 { "AM" } else { "PM" }),
            Some('B') => out.write_str(month_name),
            Some('b' | 'h') => out.write_str(&month_name[..3]),
            Some('A') => out.write_str(day_name),
            Some('a') => out.write_str(&day_name[..3]),
            Some('F') => write!(out, "{year}-{month:02}-{day:02}"),
            Some('T') => write!(out, "{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => out.write_str("UTC"),
            Some('z') => out.write_str("+0000"),
            Some('%') => out.write_str("%"),
            Some(other) => return Err(format!("strftime_now: %{other} is not supported")),
            None => return Err("strftime_now: the format ends with %".into()),
        };
        written.expect("writing to a String does not fail");
    }
    Ok(out)
}

/// Year, month and day of a day counted from 1970-01-01 (H. Hinnant's `civil_from_days`).
fn civil(days: i64) -> (i64, usize, u64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month as usize, day as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn known_dates_are_written_right() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let all = "%Y-%m-%d %H:%M:%S %a %b %-d %p %I %%";
        assert_eq!(strftime(at(0), all).unwrap(), "1970-01-01 00:00:00 Thu Jan 1 AM 12 %");
        let leap = strftime(at(1_709_210_096), "%d %B %Y, %A %T").unwrap();
        assert_eq!(leap, "29 February 2024, Thursday 12:34:56");
        assert!(strftime(at(0), "%Q").unwrap_err().contains("%Q"));
    }
}
