//! State that functions of several workers share.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

/// State that functions of several workers share, one value of a type: the first function that is prepared puts it
/// there, or who has them made, and it goes with the last of them.
#[derive(Clone, Default)]
pub struct Shared(Arc<Mutex<Vec<Box<dyn Any + Send>>>>);

impl Shared {
    /// Calls `use_it` with the value of that type; none before somebody has put it there.
    pub fn lock<T: Send + 'static, R>(&self, use_it: impl FnOnce(&mut Option<T>) -> R) -> R {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = all.iter().position(|it| it.is::<T>());
        let there = at.and_then(|at| all.swap_remove(at).downcast().ok());
        let mut there = there.map(|it| *it);
        let result = use_it(&mut there);
        all.extend(there.map(|it| Box::new(it) as Box<dyn Any + Send>));
        result
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_first_one_puts_there_the_others_find_and_it_goes_with_the_last() {
        let first = Shared::default();
        let second = first.clone();
        let kept = Arc::new(7);
        first.lock(|it| *it = Some(Arc::clone(&kept)));
        first.lock(|it| *it = Some("of another type"));
        let found = second.lock(|it: &mut Option<Arc<i32>>| it.as_ref().map(|it| **it));
        assert_eq!(found, Some(7));
        assert_eq!(second.lock(|it| *it), Some("of another type"));
        assert_eq!(second.lock(|it: &mut Option<bool>| *it), None);
        drop(first);
        assert_eq!(Arc::strong_count(&kept), 2);
        drop(second);
        assert_eq!(Arc::strong_count(&kept), 1);
    }
}
