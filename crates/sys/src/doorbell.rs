//! The doorbell that wakes the receiver of a ring in memory when it sleeps instead of polling.
//!
//! Sender and receiver each write one variable and then read the other's. The sender publishes frames, then checks for
//! a request to be woken; the receiver requests a wakeup, then checks for frames. With a full fence between the two
//! steps on both sides, at least one side sees the other's write (Dekker's algorithm). Therefore the receiver never
//! sleeps while a frame is waiting. A sender should not wait for its stores while the receiver polls, so it fences only
//! after the receiver has announced that it sleeps.

use crate::{Alarm, Error};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};
use std::os::fd::{AsFd, OwnedFd};

// For tests of every interleaving (`./run miri`), the types of loom.
#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// The doorbell of one ring. The sender rings it if the receiver has requested a wakeup.
#[derive(Debug)]
pub struct Doorbell {
    /// True if the receiver has announced that it sleeps, so that the sender must fence.
    sleeps: AtomicBool,
    /// True if the receiver requests a wakeup: it sleeps, or is about to.
    asked: AtomicBool,
    /// Eventfd that is readable after the doorbell was rung.
    file: OwnedFd,
}

impl Doorbell {
    /// Makes a doorbell whose receiver has requested no wakeup.
    ///
    /// # Errors
    /// [`Error::System`] if too many files are open.
    pub fn new() -> Result<Self, Error> {
        let file = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let file =
            file.map_err(|e| Error::system("cannot make the eventfd that wakes a worker", e))?;
        Ok(Self {
            sleeps: AtomicBool::new(false),
            asked: AtomicBool::new(false),
            file,
        })
    }

    /// Arms the doorbell: requests a wakeup. If it returns true, the receiver checks once more for frames and then
    /// sleeps on `alarm`. The first call returns false: the receiver must keep polling until the sender knows that it
    /// has to fence. That takes as long as a store needs to reach another core.
    pub fn arm(&self, alarm: &mut Alarm) -> bool {
        if !self.sleeps.load(Ordering::Relaxed) {
            self.sleeps.store(true, Ordering::SeqCst);
            return false;
        }
        self.asked.store(true, Ordering::Relaxed);
        // Pairs with the fence in `ring`: the request is visible before the last check.
        fence(Ordering::SeqCst);
        alarm.watch(self.file.as_fd());
        true
    }

    /// Withdraws the receiver's request for a wakeup, because the receiver is awake.
    pub fn disarm(&self) {
        self.asked.store(false, Ordering::Relaxed);
        // A concurrent `ring` may write after this read; then the receiver's next sleep ends early.
        let _ = read(&self.file, &mut [0; 8]);
    }

    /// Rings the doorbell after frames were published. It makes one system call per request of the receiver, and none
    /// without a request.
    #[inline(always)]
    pub fn ring(&self) {
        if !self.sleeps.load(Ordering::Relaxed) {
            return;
        }
        // Pairs with the fence in `arm`: frames are published before this check.
        fence(Ordering::SeqCst);
        if self.asked.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    /// Returns true if the receiver sleeps, or is about to.
    pub fn is_armed(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    #[cold]
    fn wake(&self) {
        if self.asked.swap(false, Ordering::Relaxed) {
            // A full counter means that the doorbell was rung already.
            let _ = write(&self.file, &1_u64.to_ne_bytes());
        }
    }
}

/// Tests of every interleaving of a few steps: `./run miri`.
#[cfg(all(test, loom))]
mod interleavings {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Only one frame and one sleep are tested. Loom does not know that a swap directly follows the value it replaces.
    /// With a second request it reports sleeping receivers that cannot occur.
    #[test]
    fn no_receiver_sleeps_while_a_frame_is_pending() {
        loom::model(|| {
            let bell = Arc::new(Doorbell::new().unwrap());
            let published = Arc::new(AtomicBool::new(false));
            assert!(!bell.arm(&mut Alarm::default()), "the first time");
            let sender = {
                let (bell, published) = (Arc::clone(&bell), Arc::clone(&published));
                thread::spawn(move || {
                    published.store(true, Ordering::Release);
                    bell.ring();
                })
            };
            assert!(bell.arm(&mut Alarm::default()));
            let is_there = published.load(Ordering::Acquire);
            sender.join().unwrap();
            // The receiver sleeps now, unless it has seen the frame or the doorbell was rung.
            assert!(is_there || read(&bell.file, &mut [0; 8]).is_ok());
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::atomic::AtomicU32;
    use std::time::{Duration, Instant};

    /// A number on cache lines of its own.
    #[derive(Default)]
    #[repr(align(128))]
    struct Line(AtomicU32);

    impl Line {
        fn set(&self, number: u32) {
            self.0.store(number, Ordering::Release);
        }

        fn get(&self) -> u32 {
            self.0.load(Ordering::Acquire)
        }

        fn wait_for(&self, number: u32) {
            let mut looks = 0_u32;
            while self.get() < number {
                looks += 1;
                // On a loaded machine both threads may share a core.
                if cfg!(miri) || looks.is_multiple_of(256) {
                    std::thread::yield_now();
                }
            }
        }
    }

    fn step(number: u32) {
        std::hint::black_box(number);
    }

    /// Both threads take their two steps at the same moment, with the checked lines in their caches. In that case a
    /// processor could let the check overtake the store before it. Run under Miri this also checks the memory
    /// orderings.
    #[test]
    fn an_armed_receiver_that_missed_a_frame_is_woken() {
        let (most, longest) = match cfg!(miri) {
            true => (100, Duration::MAX),
            false => (300_000, Duration::from_secs(2)),
        };
        let bell = Doorbell::new().unwrap();
        assert!(!bell.arm(&mut Alarm::default()), "the first time");
        let (published, sender, receiver) = (Line::default(), Line::default(), Line::default());
        let last = Line(most.into());
        let (mut asleep_on_it, mut was_rung) = (0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut number = 0;
                while number < last.get() {
                    number += 1;
                    std::hint::black_box(bell.asked.load(Ordering::Relaxed));
                    sender.set(2 * number);
                    receiver.wait_for(2 * number);
                    (0..number / 16 % 16).for_each(step);
                    published.set(number);
                    bell.ring();
                    sender.set(2 * number + 1);
                    receiver.wait_for(2 * number + 1);
                }
            });
            let (mut alarm, begun) = (Alarm::default(), Instant::now());
            for number in 1..=most {
                alarm.clear();
                step(published.get());
                receiver.set(2 * number);
                sender.wait_for(2 * number);
                (0..number % 16).for_each(step);
                assert!(bell.arm(&mut alarm));
                let there = published.get() == number;
                sender.wait_for(2 * number + 1);
                let rung = read(&bell.file, &mut [0; 8]).is_ok();
                asleep_on_it += u32::from(!there && !rung);
                was_rung += u32::from(rung);
                bell.disarm();
                if begun.elapsed() > longest {
                    last.set(number);
                }
                receiver.set(2 * number + 1);
                if last.get() == number {
                    break;
                }
            }
        });
        assert_eq!(asleep_on_it, 0, "of {}; {was_rung} were rung", last.get());
    }
}
