//! Values (paths, source addresses) that entries of the bearer table name by a number, with the number of entries that
//! use each.

use std::collections::HashMap;
use std::hash::Hash;

/// The values by number, from 1; 0 means none.
#[derive(Debug)]
pub(super) struct Numbered<T> {
    numbers: HashMap<T, u32>,
    /// For each number, at index number minus 1: the value, None if the number is free, and the number of entries that
    /// use it.
    users: Vec<(Option<T>, u32)>,
    free: Vec<u32>,
    most: usize,
}

impl<T: Copy + Eq + Hash> Numbered<T> {
    /// Creates an empty set of at most `most` different values.
    pub fn new(most: usize) -> Self {
        Self {
            numbers: HashMap::new(),
            users: Vec::new(),
            free: Vec::new(),
            most,
        }
    }

    /// Returns the number of different values in use.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Returns the value with the given number; none if the number is not in use.
    pub fn get(&self, number: u32) -> Option<T> {
        let index = (number as usize).checked_sub(1)?;
        self.users.get(index)?.0
    }

    /// Returns all values, with their numbers.
    pub fn all(&self) -> impl Iterator<Item = (u32, T)> {
        let numbered = (1..).zip(&self.users);
        numbered.filter_map(|(number, (value, _))| Some((number, (*value)?)))
    }

    /// Counts one more entry that uses a value. Returns the number of the value (0 for no value), and true if the value
    /// is new; none if there are too many values.
    pub fn take(&mut self, value: Option<T>) -> Option<(u32, bool)> {
        let Some(value) = value else {
            return Some((0, false));
        };
        if let Some(number) = self.numbers.get(&value) {
            self.users[*number as usize - 1].1 += 1;
            return Some((*number, false));
        }
        let number = match self.free.pop() {
            Some(number) => number,
            None if self.users.len() < self.most => {
                self.users.push((None, 0));
                self.users.len() as u32
            }
            None => return None,
        };
        self.users[number as usize - 1] = (Some(value), 1);
        self.numbers.insert(value, number);
        Some((number, true))
    }

    /// Counts one entry less that uses the value with a number; a value that no entry uses any more is removed.
    pub fn release(&mut self, number: u32) {
        let Some(index) = (number as usize).checked_sub(1) else {
            return;
        };
        let (value, users) = &mut self.users[index];
        *users -= 1;
        if *users == 0
            && let Some(value) = value.take()
        {
            self.numbers.remove(&value);
            self.free.push(number);
        }
    }
}
