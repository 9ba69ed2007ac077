//! The date format of HTTP.

/// The length of a date.
pub(crate) const LENGTH: usize = 29;

const SECONDS_PER_DAY: u64 = 86_400;
const DAYS: [&[u8; 3]; 7] = [b"Thu", b"Fri", b"Sat", b"Sun", b"Mon", b"Tue", b"Wed"];
const MONTHS: [&[u8; 3]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];

/// Formats the time `unix_s`, in seconds since 1970, as an IMF-fixdate like `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110,
/// section 5.6.7). Times after the year 9999 become the last second of that year.
pub fn http_date(unix_s: u64) -> [u8; LENGTH] {
    const LAST: u64 = 253_402_300_799;
    let unix_s = unix_s.min(LAST);
    let (days, second) = (unix_s / SECONDS_PER_DAY, unix_s % SECONDS_PER_DAY);
    let (year, month, day) = civil(days);

    let mut date = *b"Thu, 01 Jan 1970 00:00:00 GMT";
    date[..3].copy_from_slice(DAYS[(days % 7) as usize]);
    date[5..7].copy_from_slice(&two_digits(day));
    date[8..11].copy_from_slice(MONTHS[month]);
    date[12..14].copy_from_slice(&two_digits(year / 100));
    date[14..16].copy_from_slice(&two_digits(year % 100));
    date[17..19].copy_from_slice(&two_digits(second / 3600));
    date[20..22].copy_from_slice(&two_digits(second / 60 % 60));
    date[23..25].copy_from_slice(&two_digits(second % 60));
    date
}

fn two_digits(number: u64) -> [u8; 2] {
    [b'0' + (number / 10) as u8, b'0' + (number % 10) as u8]
}

/// The year, the month from 0, and the day from 1, for a number of days since 1970-01-01.
///
/// The algorithm is `civil_from_days` of Howard Hinnant's "chrono-Compatible Low-Level Date Algorithms". Years start in
/// March, so that a leap day is the last day of a year, and 400 of them make an era of constant length.
fn civil(days: u64) -> (u64, usize, u64) {
    const DAYS_PER_ERA: u64 = 146_097;
    // Count from 0000-03-01.
    let days = days + 719_468;
    let (era, day_of_era) = (days / DAYS_PER_ERA, days % DAYS_PER_ERA);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12;
    let year = era * 400 + year_of_era + u64::from(month < 2);
    (year, month as usize, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_gnu_date() {
        for (unix_s, expected) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_399, "Mon, 28 Feb 2000 23:59:59 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (951_868_800, "Wed, 01 Mar 2000 00:00:00 GMT"),
            (1_798_761_599, "Thu, 31 Dec 2026 23:59:59 GMT"),
            (4_107_542_399, "Sun, 28 Feb 2100 23:59:59 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
            (253_402_300_799, "Fri, 31 Dec 9999 23:59:59 GMT"),
            (u64::MAX, "Fri, 31 Dec 9999 23:59:59 GMT"),
        ] {
            assert_eq!(str::from_utf8(&http_date(unix_s)), Ok(expected), "{unix_s}");
        }
    }

    #[test]
    fn days_follow_one_another() {
        let mut before = civil(0);
        for days in 1..3_000_000 {
            let now = civil(days);
            let next_day = (before.0, before.1, before.2 + 1);
            let next_month = (before.0, before.1 + 1, 1);
            let next_year = (before.0 + 1, 0, 1);
            assert!(
                now == next_day || now == next_month || (before.1 == 11 && now == next_year),
                "{before:?} {now:?}"
            );
            assert!(now.2 <= 31 && now.1 < 12);
            before = now;
        }
    }
}
