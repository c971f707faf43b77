//! A map of few entries in one block of memory. Sessions have few rules of each kind, and there may be millions of
//! sessions, so the spare room of a tree's nodes would be most of their memory.

/// The entries in the order of their keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sorted<K, V>(Vec<(K, V)>);

impl<K, V> Default for Sorted<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Ord, V> Sorted<K, V> {
    fn place(&self, key: &K) -> Result<usize, usize> {
        self.0.binary_search_by(|entry| entry.0.cmp(key))
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &K) -> Option<&V> {
        let place = self.place(key).ok()?;
        Some(&self.0[place].1)
    }

    /// Returns the value of a key, to change it.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let place = self.place(key).ok()?;
        Some(&mut self.0[place].1)
    }

    /// Returns true if there is an entry with this key.
    pub fn contains_key(&self, key: &K) -> bool {
        self.place(key).is_ok()
    }

    /// Adds an entry, or replaces the value of its key.
    pub fn insert(&mut self, key: K, value: V) {
        match self.place(&key) {
            Ok(place) => self.0[place].1 = value,
            Err(place) => {
                self.0.reserve_exact(1);
                self.0.insert(place, (key, value));
            }
        }
    }

    /// Removes an entry; returns its value.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let place = self.place(key).ok()?;
        Some(self.0.remove(place).1)
    }

    /// Returns the keys in order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.0.iter().map(|entry| &entry.0)
    }

    /// Returns the values in the order of their keys.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> {
        self.0.iter().map(|entry| &entry.1)
    }

    /// Returns the values in the order of their keys, to change them.
    pub fn values_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut V> {
        self.0.iter_mut().map(|entry| &mut entry.1)
    }

    /// Returns the entries in the order of their keys.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.0.iter().map(|entry| (&entry.0, &entry.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn entries_equal_those_of_a_standard_tree_map(steps in proptest::collection::vec((0u8..9, any::<Option<u8>>()), 0..40)) {
            let (mut map, mut tree) = (Sorted::default(), BTreeMap::new());
            for (key, value) in steps {
                match value {
                    Some(value) => {
                        map.insert(key, value);
                        tree.insert(key, value);
                    }
                    None => prop_assert_eq!(map.remove(&key), tree.remove(&key)),
                }
                prop_assert!(map.iter().eq(tree.iter()));
                prop_assert_eq!((map.len(), map.get(&key)), (tree.len(), tree.get(&key)));
                prop_assert_eq!(map.contains_key(&key), tree.contains_key(&key));
            }
        }
    }
}
