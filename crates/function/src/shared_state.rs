//! State that the instances of a function in several workers share.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

/// The state that the instances of a function in several workers share, one value of each type. Each value is stored by
/// the instance that is prepared first, or by the code that creates the instances. The state is dropped with the last
/// instance.
#[derive(Clone, Default)]
pub struct Shared(Arc<Mutex<Vec<Box<dyn Any + Send>>>>);

impl Shared {
    /// Calls `use_it` with the stored value of type `T`; the argument is none if no value of this type is stored yet.
    pub fn lock<T: Send + 'static, R>(&self, use_it: impl FnOnce(&mut Option<T>) -> R) -> R {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = all.iter().position(|it| it.is::<T>());
        let there = at.and_then(|at| all.swap_remove(at).downcast().ok());
        let mut there = there.map(|it| *it);
        let result = use_it(&mut there);
        all.extend(there.map(|it| Box::new(it) as Box<dyn Any + Send>));
        result
    }

    /// Returns the shared value of type `T`. The first caller makes the value with `make`; other callers wait until it
    /// is made, and get the same value.
    ///
    /// # Errors
    /// Returns the error of `make`; the next caller then tries again.
    pub fn found_or_made<T: Clone + Send + 'static, E>(
        &self,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        self.lock(|there: &mut Option<T>| match there {
            Some(there) => Ok(there.clone()),
            None => Ok(there.insert(make()?).clone()),
        })
    }
}

/// The names of the ports of a chain, in order. The code that creates the functions stores them in the shared state, so
/// that the output of functions can name ports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PortNames(pub Arc<[String]>);

impl PortNames {
    /// Returns the port names in a shared state; an empty list if none are stored.
    pub fn found_in(shared: &Shared) -> Self {
        shared.lock(|it| Option::clone(it)).unwrap_or_default()
    }

    /// Creates a shared state that contains these port names.
    pub fn shared(&self) -> Shared {
        let shared = Shared::default();
        shared.lock(|it| *it = Some(self.clone()));
        shared
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
    fn a_shared_value_is_created_once_unless_creation_fails() {
        let first = Shared::default();
        assert_eq!(first.found_or_made::<u8, _>(|| Err("no")), Err("no"));
        assert_eq!(first.found_or_made(|| Ok::<_, &str>(7_u8)), Ok(7));
        let second = first.clone();
        assert_eq!(second.found_or_made(|| Ok::<_, &str>(8_u8)), Ok(7));
        assert_eq!(second.found_or_made(|| Ok::<_, &str>("other")), Ok("other"));
    }

    #[test]
    fn port_names_are_found_in_the_shared_state() {
        let names = PortNames(["left".to_string(), "right".to_string()].into());
        let shared = names.shared();
        assert_eq!(PortNames::found_in(&shared.clone()), names);
        assert_eq!(PortNames::found_in(&shared), names);
        assert_eq!(
            PortNames::found_in(&Shared::default()),
            PortNames::default()
        );
    }

    #[test]
    fn a_shared_value_lives_until_the_last_clone_is_dropped() {
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
