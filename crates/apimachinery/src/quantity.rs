//! Resource quantities: fixed-point numbers with a suffix, never floating point.
//!
//! A quantity is a mantissa times a power of ten (held exactly in 128 bits, at nano precision at the finest) and
//! remembers which family of suffixes it was written with. Printing gives the canonical form: the largest
//! suffix with an integral mantissa.

use std::{cmp::Ordering, fmt, str::FromStr};

use thiserror::Error;

/// Family of suffixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Ki, Mi, Gi
    Binary,
    /// m, k, M, G
    Decimal,
    /// e3, e6
    Exponent,
}

/// Why a text is not a quantity.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum QuantityError {
    /// Malformed.
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Syntax,
    /// Malformed number part.
    #[error("unable to parse numeric part of quantity")]
    Numeric,
    /// Unknown suffix.
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

/// A number of things: bytes, cores, pods. Counted in billionths.
#[derive(Debug, Clone, Copy)]
pub struct Quantity {
    nano: i128,
    format: Format,
}

const NANO: i128 = 1_000_000_000;
/// The largest magnitude, as upstream caps it: 2^63 - 1.
const MAX: i128 = i64::MAX as i128 * NANO;

impl Quantity {
    /// Zero, written without suffix.
    pub const ZERO: Quantity = Quantity { nano: 0, format: Format::Decimal };

    /// A whole number.
    pub fn new(value: i64) -> Self {
        Self { nano: i128::from(value) * NANO, format: Format::Decimal }
    }

    /// A number of thousandths.
    pub fn from_millis(millis: i64) -> Self {
        Self { nano: i128::from(millis) * (NANO / 1000), format: Format::Decimal }
    }

    /// A number of bytes, printed with binary suffixes.
    pub fn bytes(value: i64) -> Self {
        Self { nano: i128::from(value) * NANO, format: Format::Binary }
    }

    /// Rounded up to a whole number.
    pub fn value(self) -> i64 {
        clamp(div_up(self.nano, NANO))
    }

    /// Rounded up to thousandths.
    pub fn millis(self) -> i64 {
        clamp(div_up(self.nano, NANO / 1000))
    }

    /// -1, 0 or 1.
    pub fn sign(self) -> i32 {
        self.nano.signum() as i32
    }

    /// Whether it is zero.
    pub fn is_zero(self) -> bool {
        self.nano == 0
    }

    /// Whether there is no fraction below one.
    pub fn is_whole(self) -> bool {
        self.nano % NANO == 0
    }

    /// Whether there is no fraction below a thousandth.
    pub fn is_whole_millis(self) -> bool {
        self.nano % (NANO / 1000) == 0
    }

    /// Sum, capped; the format of the left side wins unless it is zero.
    #[must_use]
    pub fn plus(self, other: Quantity) -> Quantity {
        let format = if self.nano == 0 { other.format } else { self.format };
        Quantity { nano: (self.nano + other.nano).clamp(-MAX, MAX), format }
    }

    /// Difference, capped.
    #[must_use]
    pub fn minus(self, other: Quantity) -> Quantity {
        let format = if self.nano == 0 { other.format } else { self.format };
        Quantity { nano: (self.nano - other.nano).clamp(-MAX, MAX), format }
    }

    /// The family of suffixes it was written with.
    pub fn format(self) -> Format {
        self.format
    }

    /// As a float, for ratios and metrics only.
    pub fn as_f64(self) -> f64 {
        self.nano as f64 / NANO as f64
    }
}

fn div_up(value: i128, by: i128) -> i128 {
    // Away from zero, as upstream rounds.
    if value >= 0 { (value + by - 1) / by } else { (value - by + 1) / by }
}

fn clamp(value: i128) -> i64 {
    value.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nano == other.nano
    }
}
impl Eq for Quantity {}
impl std::hash::Hash for Quantity {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.nano.hash(state);
    }
}
impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nano.cmp(&other.nano)
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (negative, rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            Some(_) => (false, text),
            None => return Err(QuantityError::Syntax),
        };
        let end = rest.bytes().position(|c| !c.is_ascii_digit() && c != b'.').unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return Err(QuantityError::Syntax);
        }
        let (base, exponent, format) = suffix_of(suffix)?;

        // mantissa digits, then scale by 10^(exponent + 9) / 10^len(fraction) into nanos
        let mut digits = whole.trim_start_matches('0').to_owned();
        digits.push_str(fraction);
        let digits = digits.trim_start_matches('0');
        let mut nano: i128 = 0;
        let mut shift = if base == 10 { exponent } else { 0 } + 9 - fraction.len() as i32;
        if !digits.is_empty() {
            if digits.len() as i32 + shift > 30 {
                nano = i128::MAX;
            } else {
                let mut digits = digits;
                let mut round = false;
                if shift < 0 {
                    let cut = (-shift) as usize;
                    if cut >= digits.len() {
                        digits = "";
                    } else {
                        round = digits[digits.len() - cut..].bytes().any(|c| c != b'0');
                        digits = &digits[..digits.len() - cut];
                    }
                    round |= digits.is_empty();
                    shift = 0;
                }
                for c in digits.bytes() {
                    nano = nano * 10 + i128::from(c - b'0');
                }
                nano *= 10i128.pow(shift as u32);
                if round {
                    nano += 1;
                }
                if base == 2 {
                    nano = nano.saturating_mul(1i128 << exponent);
                }
            }
        }
        nano = nano.min(MAX);
        Ok(Quantity { nano: if negative { -nano } else { nano }, format })
    }
}

fn suffix_of(suffix: &str) -> Result<(u8, i32, Format), QuantityError> {
    let decimal = |exponent| Ok((10, exponent, Format::Decimal));
    let binary = |exponent| Ok((2, exponent, Format::Binary));
    match suffix {
        "" => decimal(0),
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E']).ok_or(QuantityError::Syntax)?;
            let digits = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
            if digits.is_empty() || !digits.bytes().all(|c| c.is_ascii_digit()) {
                return Err(QuantityError::Syntax);
            }
            let exponent: i32 = exponent.parse().map_err(|_| QuantityError::Suffix)?;
            Ok((10, exponent.clamp(-1000, 1000), Format::Exponent))
        }
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nano == 0 {
            return f.write_str("0");
        }
        if self.format == Format::Binary && self.nano.abs() >= 1024 * NANO && self.is_whole() {
            let mut value = self.nano / NANO;
            let mut power = 0;
            while value % 1024 == 0 && power < 6 {
                value /= 1024;
                power += 1;
            }
            return write!(f, "{value}{}", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][power]);
        }
        let mut value = self.nano;
        let mut power = 0;
        while value % 1000 == 0 && power < 9 {
            value /= 1000;
            power += 1;
        }
        match self.format {
            Format::Exponent => {
                let exponent = power as i32 * 3 - 9;
                if exponent == 0 { write!(f, "{value}") } else { write!(f, "{value}e{exponent}") }
            }
            _ => write!(f, "{value}{}", ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"][power]),
        }
    }
}

impl serde::Serialize for Quantity {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Quantity {
    /// From text, or from a plain number as YAML authors write it.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl serde::de::Visitor<'_> for Text {
            type Value = Quantity;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Quantity, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Quantity, E> {
                Ok(Quantity::new(number))
            }
            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Quantity, E> {
                number.to_string().parse().map_err(E::custom)
            }
            fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Quantity, E> {
                number.to_string().parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Text)
    }
}

/// The canonical text of a quantity, borrowing when it already is.
pub fn canonical(text: &str) -> Result<Option<String>, QuantityError> {
    let quantity: Quantity = text.parse()?;
    let canonical = quantity.to_string();
    Ok((canonical != text).then_some(canonical))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_become_canonical() {
        for (text, want) in [
            ("0", "0"),
            ("1.5", "1500m"),
            ("1.5Gi", "1536Mi"),
            ("1000m", "1"),
            ("0.1m", "100u"),
            ("1024", "1024"),
            ("1024Ki", "1Mi"),
            ("1e3", "1e3"),
            ("12e6", "12e6"),
            ("1E", "1E"),
            ("100e-2", "1"),
            ("0.5Ki", "512"),
            ("-1.5", "-1500m"),
            ("+1", "1"),
            ("0.0000000001", "1n"),
            ("1000", "1k"),
            ("100000", "100k"),
            ("5.", "5"),
            (".5", "500m"),
            ("9Ei", "9223372036854775807"),
        ] {
            assert_eq!(text.parse::<Quantity>().map(|q| q.to_string()).as_deref(), Ok(want), "{text}");
        }
        for bad in ["", "a", "1x", "1 Gi", "--1", "1.2.3", "1e", "Gi", "1ee3", "."] {
            assert!(bad.parse::<Quantity>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn values_round_up() {
        let q: Quantity = "1100m".parse().expect("quantity");
        assert_eq!((q.value(), q.millis()), (2, 1100));
        assert_eq!("1u".parse::<Quantity>().expect("quantity").millis(), 1);
    }

    proptest! {
        #[test]
        fn printing_and_parsing_agree(value in any::<i32>(), suffix in 0usize..14) {
            let suffix = ["n", "u", "m", "", "k", "M", "G", "Ki", "Mi", "Gi", "e3", "e-3", "e0", "Ti"][suffix];
            let quantity: Quantity = format!("{value}{suffix}").parse().expect("well formed");
            let again: Quantity = quantity.to_string().parse().expect("canonical form parses");
            prop_assert_eq!(quantity, again);
            prop_assert_eq!(quantity.to_string(), again.to_string());
        }

        #[test]
        fn any_text_parses_or_is_refused(text in "[-+0-9.eEinumkKMGTP]{0,12}") {
            if let Ok(quantity) = text.parse::<Quantity>() {
                prop_assert_eq!(quantity.plus(Quantity::ZERO), quantity);
            }
        }
    }
}
