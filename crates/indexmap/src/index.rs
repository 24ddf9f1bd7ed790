//! Where the entries of a long map are.

use hashbrown::HashTable;

/// Finds positions by hash.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    positions: HashTable<usize>,
    /// The hash of the key at each position.
    hashes: Vec<u64>,
}

impl Index {
    /// Of keys with these hashes, in this order.
    pub fn of(hashes: Vec<u64>) -> Self {
        let mut positions = HashTable::with_capacity(hashes.len());
        for (position, hash) in hashes.iter().enumerate() {
            positions.insert_unique(*hash, position, |other| hashes[*other]);
        }
        Self { positions, hashes }
    }

    /// The position with this hash that is the wanted one.
    pub fn find(&self, hash: u64, wanted: impl Fn(usize) -> bool) -> Option<usize> {
        self.positions.find(hash, |position| wanted(*position)).copied()
    }

    /// An entry was added at the end.
    pub fn push(&mut self, hash: u64) {
        self.hashes.push(hash);
        let hashes = &self.hashes;
        self.positions.insert_unique(hash, hashes.len() - 1, |other| hashes[*other]);
    }

    fn forget(&mut self, position: usize) {
        if let Ok(slot) = self.positions.find_entry(self.hashes[position], |other| *other == position) {
            slot.remove();
        }
    }

    /// The entry at a position was taken out, and the last one put there.
    pub fn swap_remove(&mut self, position: usize) {
        self.forget(position);
        let last = self.hashes.len() - 1;
        if position != last
            && let Some(moved) = self.positions.find_mut(self.hashes[last], |other| *other == last)
        {
            *moved = position;
        }
        self.hashes.swap_remove(position);
    }

    /// The entry at a position was taken out, and all after it moved up.
    pub fn shift_remove(&mut self, position: usize) {
        self.forget(position);
        self.hashes.remove(position);
        for other in &mut self.positions {
            if *other > position {
                *other -= 1;
            }
        }
    }
}
