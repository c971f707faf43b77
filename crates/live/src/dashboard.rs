//! The terminal of a dashboard: switched to the dashboard, polled for keys, and restored.

use super::capture::{self, CaptureView};
use super::control::{self, ControlView};
use super::draw::{View, draw};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::io::{self, IsTerminal};
use std::time::Duration;

/// A dashboard that fills the terminal. Dropping it, and a panic, restore the terminal.
pub struct Dashboard {
    terminal: DefaultTerminal,
    /// Index of the displayed stream, modulo the number of streams.
    selected: usize,
}

/// The action that a key requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// No action.
    Nothing,
    /// Another stream was selected: the caller draws again.
    Stream,
    /// The user requested the end: q, Escape or Ctrl-C.
    Quit,
}

impl Dashboard {
    /// Returns true if there is a terminal for output and keys.
    pub fn is_possible() -> bool {
        io::stdout().is_terminal() && io::stdin().is_terminal()
    }

    /// Switches the terminal to the dashboard.
    ///
    /// # Errors
    /// The terminal reports an error.
    pub fn open() -> io::Result<Self> {
        ratatui::try_init().map(|terminal| Self {
            terminal,
            selected: 0,
        })
    }

    /// Draws the dashboard of a generator.
    ///
    /// # Errors
    /// The terminal is closed.
    pub fn show(&mut self, view: &View<'_>) -> io::Result<()> {
        let selected = self.selected;
        self.terminal
            .draw(|frame| draw(frame, view, selected))
            .map(drop)
    }

    /// Draws the dashboard of a capture.
    ///
    /// # Errors
    /// The terminal is closed.
    pub fn show_capture(&mut self, view: &CaptureView<'_>) -> io::Result<()> {
        self.terminal
            .draw(|frame| capture::draw(frame, view))
            .map(drop)
    }

    /// Draws the dashboard of a control loop.
    ///
    /// # Errors
    /// The terminal is closed.
    pub fn show_control(&mut self, view: &ControlView<'_>) -> io::Result<()> {
        self.terminal
            .draw(|frame| control::draw(frame, view))
            .map(drop)
    }

    /// Waits up to `patience` for keys. The keys q, Escape and Ctrl-C request the end; Tab, the arrows and digits
    /// select another stream.
    ///
    /// # Errors
    /// The terminal is closed.
    pub fn keys(&mut self, patience: Duration) -> io::Result<Asked> {
        let stdin = io::stdin();
        let mut keys = [PollFd::new(&stdin, PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: patience.as_secs() as i64,
            tv_nsec: i64::from(patience.subsec_nanos()),
        };
        match rustix::event::poll(&mut keys, Some(&timeout)) {
            // After a signal the caller checks the stop flag.
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(Asked::Nothing),
            Ok(_) => {}
            Err(e) => return Err(e.into()),
        }
        // Without this check crossterm would read from a closed terminal forever.
        if keys[0]
            .revents()
            .intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
        {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut asked = Asked::Nothing;
        while event::poll(Duration::ZERO)? {
            // A changed size of the terminal also makes the caller draw again.
            match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press => {
                    let control = key.modifiers.contains(KeyModifiers::CONTROL);
                    if quits(key.code, control) {
                        return Ok(Asked::Quit);
                    }
                    if let Some(selected) = selected_by(key.code, self.selected) {
                        self.selected = selected;
                        asked = Asked::Stream;
                    }
                }
                Event::Resize(..) => asked = Asked::Stream,
                _ => {}
            }
        }
        Ok(asked)
    }
}

fn quits(key: KeyCode, control: bool) -> bool {
    matches!(key, KeyCode::Char('q' | 'Q') | KeyCode::Esc) || (key == KeyCode::Char('c') && control)
}

/// Returns the index of the stream that a key selects after `selected`; none for other keys. The digit 1 selects the
/// first stream.
fn selected_by(key: KeyCode, selected: usize) -> Option<usize> {
    match key {
        KeyCode::Tab | KeyCode::Right | KeyCode::Down => Some(selected.wrapping_add(1)),
        KeyCode::BackTab | KeyCode::Left | KeyCode::Up => Some(selected.wrapping_sub(1)),
        KeyCode::Char(digit @ '1'..='9') => Some(digit as usize - '1' as usize),
        _ => None,
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        // A closed terminal cannot be restored.
        let _ = ratatui::try_restore();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_select_streams_or_end_the_run() {
        assert_eq!(selected_by(KeyCode::Tab, 1), Some(2));
        assert_eq!(selected_by(KeyCode::Up, 2), Some(1));
        assert_eq!(selected_by(KeyCode::Left, 0), Some(usize::MAX));
        assert_eq!(selected_by(KeyCode::Char('3'), 0), Some(2));
        assert_eq!(selected_by(KeyCode::Char('0'), 0), None);
        assert!(quits(KeyCode::Esc, false) && quits(KeyCode::Char('c'), true));
        assert!(!quits(KeyCode::Char('c'), false) && !quits(KeyCode::Tab, false));
    }
}
