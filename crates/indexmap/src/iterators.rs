//! Iterators over the entries of a map.

use std::fmt;
use std::iter::FusedIterator;
use std::{slice, vec};

/// An iterator over something that is found in the entries that another one yields.
macro_rules! over_entries {
    ($(#[$about:meta])* $name:ident <$($life:lifetime)?> over $inner:ty, yields $item:ty, by $pick:expr) => {
        $(#[$about])*
        pub struct $name<$($life,)? K, V>(pub(crate) $inner);

        impl<$($life,)? K, V> Iterator for $name<$($life,)? K, V> {
            type Item = $item;

            #[inline]
            fn next(&mut self) -> Option<Self::Item> {
                self.0.next().map($pick)
            }

            #[inline]
            fn size_hint(&self) -> (usize, Option<usize>) {
                self.0.size_hint()
            }
        }

        impl<$($life,)? K, V> DoubleEndedIterator for $name<$($life,)? K, V> {
            #[inline]
            fn next_back(&mut self) -> Option<Self::Item> {
                self.0.next_back().map($pick)
            }
        }

        impl<$($life,)? K, V> ExactSizeIterator for $name<$($life,)? K, V> {}
        impl<$($life,)? K, V> FusedIterator for $name<$($life,)? K, V> {}

        impl<$($life,)? K: fmt::Debug, V: fmt::Debug> fmt::Debug for $name<$($life,)? K, V> {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.debug_list().entries(self.0.as_slice()).finish()
            }
        }
    };
}

over_entries!(/** Entries. */ Iter<'a> over slice::Iter<'a, (K, V)>, yields (&'a K, &'a V), by |(key, value)| (key, value));
over_entries!(/** Keys. */ Keys<'a> over slice::Iter<'a, (K, V)>, yields &'a K, by |(key, _)| key);
over_entries!(/** Values. */ Values<'a> over slice::Iter<'a, (K, V)>, yields &'a V, by |(_, value)| value);
over_entries!(/** Entries whose values may change. */ IterMut<'a> over slice::IterMut<'a, (K, V)>, yields (&'a K, &'a mut V), by |(key, value)| (&*key, value));
over_entries!(/** Values that may change. */ ValuesMut<'a> over slice::IterMut<'a, (K, V)>, yields &'a mut V, by |(_, value)| value);
over_entries!(/** Entries, taken out. */ IntoIter<> over vec::IntoIter<(K, V)>, yields (K, V), by |entry| entry);
over_entries!(/** Keys, taken out. */ IntoKeys<> over vec::IntoIter<(K, V)>, yields K, by |(key, _)| key);
over_entries!(/** Values, taken out. */ IntoValues<> over vec::IntoIter<(K, V)>, yields V, by |(_, value)| value);

impl<K, V> Clone for Iter<'_, K, V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K, V> Clone for Keys<'_, K, V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K, V> Clone for Values<'_, K, V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}
