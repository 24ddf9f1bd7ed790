//! Reading quantities: whole units and thousandths, both rounded up as upstream does.

use crate::pod::Quantity;

impl Quantity {
    fn parsed(&self) -> Option<apimachinery::quantity::Quantity> {
        self.0.trim().parse().ok()
    }

    /// The value in whole units (bytes, cores), rounded up; `None` if it is not a quantity.
    pub fn value(&self) -> Option<i64> {
        self.parsed().map(apimachinery::quantity::Quantity::value)
    }

    /// The value in thousandths (milli-cores), rounded up.
    pub fn millis(&self) -> Option<i64> {
        self.parsed().map(apimachinery::quantity::Quantity::millis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_their_value() {
        let cases =
            [("1", 1, 1000), ("100m", 1, 100), ("1.5", 2, 1500), ("128Mi", 128 << 20, (128 << 20) * 1000)];
        for (text, value, millis) in cases {
            let quantity = Quantity(text.into());
            assert_eq!((quantity.value(), quantity.millis()), (Some(value), Some(millis)), "{text}");
        }
        assert_eq!(Quantity("x".into()).value(), None);
    }
}
