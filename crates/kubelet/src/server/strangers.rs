//! How many connections may be open whose client has not been allowed anything yet.
//!
//! Whoever reaches the port can open connections and say nothing. Those are few, in all and from one address, and do not
//! keep out the others: a connection counts only until its first request was let through.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

const MOST: usize = 1024;
const MOST_OF_ONE: usize = 128;

#[derive(Default)]
pub struct Strangers(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// One connection that counts, until it is dropped.
pub struct Visit {
    strangers: Arc<Strangers>,
    address: IpAddr,
}

impl Strangers {
    /// Counts a connection; none if there are too many.
    pub fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Visit> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.all >= MOST || counts.by_address.get(&address).is_some_and(|count| *count >= MOST_OF_ONE) {
            return None;
        }
        counts.all += 1;
        *counts.by_address.entry(address).or_default() += 1;
        Some(Visit { strangers: self.clone(), address })
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let mut counts = self.strangers.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.all -= 1;
        if let Some(count) = counts.by_address.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.by_address.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_does_not_keep_out_another() {
        let strangers = Arc::new(Strangers::default());
        let (one, other): (IpAddr, IpAddr) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let visits: Vec<Visit> = (0..MOST_OF_ONE).map(|_| strangers.enter(one).unwrap()).collect();
        assert!(strangers.enter(one).is_none());
        assert!(strangers.enter(other).is_some());
        drop(visits);
        assert!(strangers.enter(one).is_some());
        let counts = strangers.0.lock().unwrap();
        assert_eq!((counts.all, counts.by_address.len()), (0, 0));
    }
}
