//! Amounts of bytes in Kubernetes' notation: `10Gi`, `1.5G`, `1e9`.

/// A text that is not an amount of bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a quantity: expected a number with or without a unit, such as 10Gi")]
pub struct InvalidQuantity(String);

/// Number of fractional digits that can matter: the others change less than a byte.
const DIGITS_BEHIND_POINT: usize = 18;

/// Factor of a unit.
enum Scale {
    Up(u128),
    Down(u128),
}

/// The number of bytes, rounded up; `u64::MAX` if it does not fit.
pub(crate) fn bytes(text: &str) -> Result<u64, InvalidQuantity> {
    read(text).ok_or_else(|| InvalidQuantity(text.to_owned()))
}

fn read(text: &str) -> Option<u64> {
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, unit) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let whole = digits(whole);
    let fraction = &fraction[..fraction.len().min(DIGITS_BEHIND_POINT)];
    let bytes = match scale(unit)? {
        Scale::Up(factor) => {
            let point = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
            let behind = digits(fraction).saturating_mul(factor).div_ceil(point);
            whole.saturating_mul(factor).saturating_add(behind)
        }
        Scale::Down(divisor) => {
            let has_fraction = u128::from(digits(fraction) > 0);
            whole.saturating_add(has_fraction).div_ceil(divisor)
        }
    };
    Some(u64::try_from(bytes).unwrap_or(u64::MAX))
}

/// The number that digits stand for, or the largest one.
fn digits(digits: &str) -> u128 {
    match digits.trim_start_matches('0') {
        "" => 0,
        digits => digits.parse().unwrap_or(u128::MAX),
    }
}

fn scale(unit: &str) -> Option<Scale> {
    let power = |base: u128, exponent: u32| base.checked_pow(exponent).unwrap_or(u128::MAX);
    let scale = match unit {
        "" => Scale::Up(1),
        "n" => Scale::Down(power(10, 9)),
        "u" => Scale::Down(power(10, 6)),
        "m" => Scale::Down(power(10, 3)),
        "k" => Scale::Up(power(10, 3)),
        "M" => Scale::Up(power(10, 6)),
        "G" => Scale::Up(power(10, 9)),
        "T" => Scale::Up(power(10, 12)),
        "P" => Scale::Up(power(10, 15)),
        "E" => Scale::Up(power(10, 18)),
        "Ki" => Scale::Up(power(2, 10)),
        "Mi" => Scale::Up(power(2, 20)),
        "Gi" => Scale::Up(power(2, 30)),
        "Ti" => Scale::Up(power(2, 40)),
        "Pi" => Scale::Up(power(2, 50)),
        "Ei" => Scale::Up(power(2, 60)),
        _ => {
            let exponent: i32 = unit.strip_prefix(['e', 'E'])?.parse().ok()?;
            let tens = power(10, exponent.unsigned_abs());
            if exponent < 0 { Scale::Down(tens) } else { Scale::Up(tens) }
        }
    };
    Some(scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_writes_them() {
        for (text, expected) in [
            ("0", Some(0)),
            ("1", Some(1)),
            ("+5", Some(5)),
            ("10Gi", Some(10 << 30)),
            ("1Ki", Some(1024)),
            ("1Mi", Some(1 << 20)),
            ("2Ti", Some(2 << 40)),
            ("3Pi", Some(3 << 50)),
            ("1Ei", Some(1 << 60)),
            ("1k", Some(1000)),
            ("1M", Some(1_000_000)),
            ("1.5G", Some(1_500_000_000)),
            ("1T", Some(1_000_000_000_000)),
            ("1P", Some(1_000_000_000_000_000)),
            ("1E", Some(1_000_000_000_000_000_000)),
            ("0.5Gi", Some(1 << 29)),
            (".5Ki", Some(512)),
            ("5.", Some(5)),
            ("1.0001", Some(2)),
            ("1500m", Some(2)),
            ("1u", Some(1)),
            ("0n", Some(0)),
            ("1000000000n", Some(1)),
            ("1e3", Some(1000)),
            ("12E2", Some(1200)),
            ("2e-1", Some(1)),
            ("1e-99", Some(1)),
            ("100Ei", Some(u64::MAX)),
            ("1e99", Some(u64::MAX)),
            ("99999999999999999999999999999999999999999", Some(u64::MAX)),
            ("0.000000000000000000000000000000001Ei", Some(0)),
            ("", None),
            (".", None),
            ("Gi", None),
            ("-1", None),
            ("1gi", None),
            ("1 Gi", None),
            ("1.2.3", None),
            ("1e", None),
            ("1eG", None),
            ("0x10", None),
            ("１", None),
        ] {
            assert_eq!(bytes(text).ok(), expected, "{text}");
        }
    }
}
