//! Text to selectors, quantities, times and durations; what parses prints and parses again.
#![no_main]

use apimachinery::{
    quantity::Quantity,
    selector::{FieldSelector, LabelSelector},
    time,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(selector) = LabelSelector::parse(text) {
        assert_eq!(LabelSelector::parse(&selector.to_string()).as_ref(), Ok(&selector));
    }
    if let Ok(selector) = FieldSelector::parse(text) {
        let _same = FieldSelector::parse(&selector.to_string()).is_ok();
    }
    if let Ok(quantity) = text.parse::<Quantity>() {
        assert_eq!(quantity.to_string().parse(), Ok(quantity));
    }
    let _time = (time::parse(text), time::parse_duration(text));
});
