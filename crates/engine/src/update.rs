//! Replacement of the functions of a running worker between two iterations: the request, the unchanged functions, and
//! the packets that replaced functions have not released yet.

use crate::chain::{ChainError, Making, Stage, build};
use crate::slow::SlowPath;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};
use taut_function::{Context, Function, Shared};
use taut_port::{Batch, Direction};

/// The time limit for replaced functions to release their packets. Packets that are not released by then are lost.
pub const LONGEST_DRAIN: Duration = Duration::from_secs(1);

/// A mailbox for requests to replace a worker's functions. The worker checks it once per iteration.
#[derive(Debug, Default)]
pub struct Updates {
    wanted: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    request: Option<Request>,
    /// True once the worker has ended.
    ended: bool,
}

/// A request to a worker, with the channel for its reply.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) stages: Vec<Stage>,
    /// State that the functions of all workers share, by index of the stage.
    pub(crate) shared: Vec<Shared>,
    pub(crate) answer: mpsc::Sender<Result<Replaced, ChainError>>,
}

/// The result of a replacement of a worker's functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replaced {
    /// Number of functions that had the same settings before and keep their state.
    pub kept: usize,
    /// Number of new functions.
    pub made: usize,
    /// Time in which the worker did not poll its ports, in cycles of [`taut_sys::ticks`]. Packets that arrive in this
    /// time are buffered in the ports' rings.
    pub pause_ticks: u64,
}

/// The reason why a worker's functions were not replaced. The worker continues with the old functions.
#[derive(Debug, thiserror::Error)]
pub enum UpdateError {
    /// One of the new functions cannot be made.
    #[error(transparent)]
    Refused(#[from] ChainError),
    /// The worker has ended, or another request is pending.
    #[error("{0}")]
    Unavailable(&'static str),
}

impl Updates {
    /// Replaces the worker's functions by those of `stages`, and returns when the new ones are in place. Functions with
    /// unchanged settings stay as they are. The replaced functions release their packets first, for at most
    /// [`LONGEST_DRAIN`]. Wrong names and settings are found before the worker is interrupted.
    ///
    /// # Errors
    /// A function cannot be made, or the worker has ended. Nothing changes then.
    pub fn replace(&self, stages: Vec<Stage>) -> Result<Replaced, UpdateError> {
        self.replace_sharing(stages, Vec::new())
    }

    /// Replaces functions as [`Updates::replace`] does, in one of several workers. `shared` is the state that the new
    /// functions of all workers share, by stage.
    pub(crate) fn replace_sharing(
        &self,
        stages: Vec<Stage>,
        shared: Vec<Shared>,
    ) -> Result<Replaced, UpdateError> {
        stages.iter().try_for_each(Stage::check)?;
        let (answer, answered) = mpsc::channel();
        {
            let mut state = self.state();
            if state.ended {
                return Err(UpdateError::Unavailable("the worker has ended"));
            }
            if state.request.is_some() {
                let text = "another update is in progress; try again";
                return Err(UpdateError::Unavailable(text));
            }
            state.request = Some(Request {
                stages,
                shared,
                answer,
            });
            self.wanted.store(true, Ordering::Relaxed);
        }
        let ended = UpdateError::Unavailable("the worker exited before the update");
        Ok(answered.recv().map_err(|_| ended)??)
    }

    /// Returns true if the worker has ended, so that its functions cannot be replaced.
    pub(crate) fn is_ended(&self) -> bool {
        self.state().ended
    }

    /// Returns true if a request to replace functions is pending. The request itself is read under a lock, so relaxed
    /// ordering is sufficient here.
    #[inline(always)]
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Takes the pending request to replace functions; None if no request is pending.
    pub(crate) fn take(&self) -> Option<Request> {
        let mut state = self.state();
        self.wanted.store(false, Ordering::Relaxed);
        state.request.take()
    }

    /// Marks the worker as ended; a waiting caller gets an error.
    pub(crate) fn end(&self) {
        let mut state = self.state();
        state.ended = true;
        state.request = None;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Replaced functions that still buffer packets.
pub(crate) struct Leaving {
    functions: Vec<Box<dyn Function>>,
    /// Identifiers of the replaced functions in the worker.
    numbers: Vec<u8>,
    /// The old functions, replaced and unchanged ones, in the order in which a packet passes them.
    route: Vec<Step>,
    /// The index of the chain of each old function, from 0, if a classifier selects the chain of each packet. Without a
    /// classifier all functions are in one chain.
    chain_of: Vec<usize>,
    until: Instant,
    /// Number of new functions in the list that replaced the old functions.
    pub(crate) made: usize,
}

/// The treatment of one function of the old list during an update; a packet's path through the old list consists of
/// such steps.
#[derive(Clone, Copy)]
enum Step {
    /// The function is replaced; the value is its index among the replaced functions.
    Leaves(usize),
    /// The function stays; the value is its position in the new list.
    Stays(usize),
}

impl Leaving {
    /// Returns the number of chains to which the old functions belong.
    pub(crate) fn chains(&self) -> usize {
        self.chain_of.iter().max().map_or(0, |last| last + 1)
    }

    /// Calls the old functions of a chain with the empty `batch`, so that they release packets into it. The packets
    /// then pass the later functions of that chain.
    pub(crate) fn process(
        &mut self,
        chain: usize,
        present: &mut [Box<dyn Function>],
        numbers: &[u8],
        batch: &mut Batch,
        context: &Context,
    ) {
        let (direction, count) = (Direction::from_port(context.from_port), self.route.len());
        for step in 0..count {
            let at = direction.place(step, count);
            if self.chain_of[at] != chain {
                continue;
            }
            match self.route[at] {
                Step::Leaves(index) => {
                    batch.set_stage(self.numbers[index]);
                    self.functions[index].process(batch, context);
                }
                Step::Stays(index) if !batch.is_empty() => {
                    batch.set_stage(numbers[index]);
                    present[index].process(batch, context);
                }
                Step::Stays(_) => {}
            }
        }
    }

    /// Returns the number of packets that the replaced functions still buffer.
    pub(crate) fn held(&self) -> usize {
        self.functions.iter().map(|f| f.held()).sum()
    }

    /// Returns true if the replaced functions have released all packets, or the time limit has expired.
    pub(crate) fn is_over(&self) -> bool {
        self.held() == 0 || Instant::now() >= self.until
    }

    /// Returns the numbers of packets by outcome in the replaced functions.
    pub(crate) fn outcomes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.functions.iter().flat_map(|f| f.outcomes())
    }
}

/// The identifiers of a worker's functions for its slow path. A function that stays keeps its identifier when others
/// are replaced.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    all: Vec<u8>,
    next: u8,
}

impl Numbers {
    /// Assigns identifiers to `count` new functions.
    pub(crate) fn of(count: usize) -> Self {
        let mut numbers = Self::default();
        numbers.all = (0..count).map(|_| numbers.fresh()).collect();
        numbers
    }

    /// Returns the identifiers, by position of the function.
    #[inline(always)]
    pub(crate) fn all(&self) -> &[u8] {
        &self.all
    }

    /// Returns the position of the function with the identifier `number`; None if the function was removed.
    pub(crate) fn place(&self, number: u8) -> Option<usize> {
        self.all.iter().position(|it| *it == number)
    }

    /// Returns the identifier that has been unused for the longest time, because frames that name a removed function
    /// may still be in a ring.
    fn fresh(&mut self) -> u8 {
        for _ in 0..u8::MAX {
            self.next = self.next.wrapping_add(1);
            if !self.all.contains(&self.next) {
                break;
            }
        }
        self.next
    }
}

/// Replaces `functions`, which were made from the stages `old`, by functions made from the stages `new`.
///
/// # Errors
/// A new function cannot be made; no function changes then.
pub(crate) fn replace(
    functions: &mut Vec<Box<dyn Function>>,
    numbers: &mut Numbers,
    slow: &mut Option<SlowPath>,
    making: &Making<'_>,
    old: &[Stage],
    new: &[Stage],
) -> Result<Leaving, ChainError> {
    let kept = kept(old, new);
    let stay: Vec<bool> = kept.iter().map(Option::is_some).collect();
    let mut made = build(new, &stay, making)?;
    let before = numbers.all.clone();
    let mut after = Vec::new();
    for kept in &kept {
        after.push(match kept {
            Some(index) => before[*index],
            None => numbers.fresh(),
        });
    }
    let numbered = made.iter_mut().zip(&after);
    let handlers = numbered.filter_map(|(f, number)| Some((*number, f.as_mut()?.handler()?)));
    set_replicas(functions, old, new, &kept)?;
    SlowPath::provide(slow, handlers)?;
    numbers.all = after;
    let mut present: Vec<_> = std::mem::take(functions).into_iter().map(Some).collect();
    let mut route: Vec<Option<Step>> = present.iter().map(|_| None).collect();
    for (place, (made, kept)) in made.into_iter().zip(&kept).enumerate() {
        let stays = kept.and_then(|index| {
            route[index] = Some(Step::Stays(place));
            present[index].take()
        });
        functions.extend(made.or(stays));
    }
    let mut leaving = Leaving {
        functions: Vec::new(),
        numbers: Vec::new(),
        route: Vec::new(),
        chain_of: chains_of(old, route.len()),
        until: Instant::now() + LONGEST_DRAIN,
        made: kept.iter().filter(|kept| kept.is_none()).count(),
    };
    for ((function, step), number) in present.into_iter().zip(route).zip(before) {
        let index = leaving.functions.len();
        if let Some(function) = function {
            leaving.functions.push(function);
            leaving.numbers.push(number);
        }
        leaving.route.push(step.unwrap_or(Step::Leaves(index)));
    }
    Ok(leaving)
}

/// Changes the numbers of replicas of the functions that stay.
fn set_replicas(
    functions: &mut [Box<dyn Function>],
    old: &[Stage],
    new: &[Stage],
    kept: &[Option<usize>],
) -> Result<(), ChainError> {
    for (stage, index) in new.iter().zip(kept) {
        let Some((replication, index)) = stage.replicas.as_ref().zip(*index) else {
            continue;
        };
        let is_same = old[index].replicas.as_ref() == Some(replication);
        if !is_same && !functions[index].set_replicas(replication) {
            return Err(ChainError::Function {
                function: stage.name.clone(),
                reason: "replicas: the machine has no memory or no threads for them".to_string(),
            });
        }
    }
    Ok(())
}

/// Returns the chain of each of `count` functions, an index from 0. The functions were made from the stages `old`, if
/// those are known.
fn chains_of(old: &[Stage], count: usize) -> Vec<usize> {
    let chain = |at: usize| old.get(at).and_then(|stage| stage.chain.as_ref());
    let first_of = |at: usize| (0..count).position(|other| chain(other) == chain(at));
    (0..count).map(|at| first_of(at).unwrap_or(0)).collect()
}

/// Returns, for each new function, the index of an old one with the same settings, or None if no such function is left.
/// Each old function is assigned at most once.
pub(crate) fn kept(old: &[Stage], new: &[Stage]) -> Vec<Option<usize>> {
    let mut free: Vec<bool> = old.iter().map(|_| true).collect();
    let find = |stage: &Stage| {
        let same = |other: &Stage| {
            (&other.name, &other.chain, &other.settings)
                == (&stage.name, &stage.chain, &stage.settings)
                && other.replicas.is_some() == stage.replicas.is_some()
        };
        let found = (0..old.len()).find(|index| free[*index] && same(&old[*index]));
        if let Some(index) = found {
            free[index] = false;
        }
        found
    };
    new.iter().map(find).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_functions::FUNCTIONS;

    fn stages(texts: &[&str]) -> Vec<Stage> {
        texts
            .iter()
            .map(|text| Stage::parse(text, FUNCTIONS).unwrap())
            .collect()
    }

    #[test]
    fn an_update_reuses_each_function_with_unchanged_settings_once() {
        let old = stages(&["xor(key=1)", "forward", "forward"]);
        let new = stages(&["forward", "xor(key=2)", "xor(key=1)", "xor(key=1)"]);
        assert_eq!(kept(&old, &new), [Some(1), None, Some(0), None]);
    }

    #[test]
    fn functions_that_cannot_be_built_leave_the_chain_unchanged() {
        let old = stages(&["forward"]);
        let made = build(&old, &[], &Making::default()).unwrap();
        let mut functions: Vec<_> = made.into_iter().flatten().collect();
        let before: *const dyn Function = &*functions[0];
        let wrong = stages(&["forward", "xor(key=1)", "xor(key=300)"]);
        let mut numbers = Numbers::of(1);
        let replaced = replace(
            &mut functions,
            &mut numbers,
            &mut None,
            &Making::default(),
            &old,
            &wrong,
        );
        assert!(replaced.is_err());
        assert_eq!(numbers.all(), Numbers::of(1).all());
        assert_eq!(functions.len(), 1);
        assert!(std::ptr::addr_eq(&*functions[0], before));
    }

    #[test]
    fn new_functions_never_get_the_identifier_of_an_existing_function() {
        let mut numbers = Numbers::of(3);
        let kept = numbers.all()[1];
        for _ in 0..1000 {
            let fresh = numbers.fresh();
            assert_ne!(fresh, kept);
            numbers.all = vec![fresh, kept];
            assert_eq!(numbers.place(kept), Some(1));
            assert_eq!(numbers.place(fresh), Some(0));
        }
        // With more functions than identifiers, the search for a free identifier still ends.
        assert_eq!(Numbers::of(300).all().len(), 300);
    }

    #[test]
    fn an_update_after_the_worker_has_ended_is_refused() {
        let updates = Updates::default();
        updates.end();
        let error = updates.replace(stages(&["forward"])).unwrap_err();
        assert!(error.to_string().contains("ended"), "{error}");
        let error = updates.replace(stages(&["xor(key=300)"])).unwrap_err();
        assert!(matches!(error, UpdateError::Refused(_)), "{error}");
    }
}
