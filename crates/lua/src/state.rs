//! Lua states with access to packets: a script borrows the memory of a batch during one call.
//!
//! LuaJIT compiles scripts and their accesses to packets. `memory.lua` reads and writes through LuaJIT's `ffi`, which
//! is hidden from the script, and checks every offset against the current length of the packet. Packets outside of the
//! call have length 0, so a script that keeps a packet after the call finds no bytes in it.
#![allow(
    unsafe_code,
    reason = "LuaJIT reads and writes packets by their addresses, and is stopped from another thread"
)]

use crate::headers::{self, ABSENT, HEADERS};
use mlua::ffi;
use mlua::{LightUserData, Lua, LuaOptions, StdLib, Table};
use std::cell::Cell;
use std::ffi::c_void;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use taut_port::{BATCH_CAPACITY, Batch, Packet};

/// Port value of packets that leave through the default port.
const USUAL_PORT: u8 = u8::MAX;

/// Maximum number of recorded values that a script buffers before it passes them on in one call.
pub const SAMPLES: usize = 1024;

/// Packets that a script has borrowed, as `memory.lua` declares them.
#[repr(C)]
struct Window {
    data: [Cell<*mut u8>; BATCH_CAPACITY],
    /// Time from timestamp to arrival of each packet, ns; negative for packets without a timestamp.
    latency_ns: [Cell<f64>; BATCH_CAPACITY],
    sequence: [Cell<f64>; BATCH_CAPACITY],
    /// Time of arrival of each packet, ns; negative for packets that did not arrive.
    arrived_ns: [Cell<f64>; BATCH_CAPACITY],
    /// For each packet, its timestamp by the receiving port; negative for packets without one.
    port_stamp: [Cell<f64>; BATCH_CAPACITY],
    len: [Cell<u32>; BATCH_CAPACITY],
    /// Greatest length to which the script may extend each packet; 0 if it may not change the length.
    room: [Cell<u32>; BATCH_CAPACITY],
    stream: [Cell<i32>; BATCH_CAPACITY],
    headers: [[Cell<u16>; HEADERS]; BATCH_CAPACITY],
    /// Marks that the script has set on packets.
    mark: [Cell<u8>; BATCH_CAPACITY],
    /// Ports to which the script has sent packets.
    port: [Cell<u8>; BATCH_CAPACITY],
    /// 1 for a packet whose headers are located, otherwise 0.
    located: [Cell<u8>; BATCH_CAPACITY],
}

impl Window {
    fn new() -> Self {
        Self {
            data: [const { Cell::new(std::ptr::null_mut()) }; BATCH_CAPACITY],
            latency_ns: [const { Cell::new(-1.0) }; BATCH_CAPACITY],
            sequence: [const { Cell::new(0.0) }; BATCH_CAPACITY],
            arrived_ns: [const { Cell::new(-1.0) }; BATCH_CAPACITY],
            port_stamp: [const { Cell::new(-1.0) }; BATCH_CAPACITY],
            len: [const { Cell::new(0) }; BATCH_CAPACITY],
            room: [const { Cell::new(0) }; BATCH_CAPACITY],
            stream: [const { Cell::new(0) }; BATCH_CAPACITY],
            headers: [const { [const { Cell::new(ABSENT) }; HEADERS] }; BATCH_CAPACITY],
            mark: [const { Cell::new(0) }; BATCH_CAPACITY],
            port: [const { Cell::new(USUAL_PORT) }; BATCH_CAPACITY],
            located: [const { Cell::new(0) }; BATCH_CAPACITY],
        }
    }

    #[inline(always)]
    fn lend(&self, slot: usize, packet: &mut Packet) {
        self.mark[slot].set(0);
        self.data[slot].set(packet.bytes_mut().as_mut_ptr());
        self.len[slot].set(packet.len() as u32);
    }
}

/// Locates the headers of a borrowed packet at the script's first request.
unsafe extern "C" fn find_headers(window: *const Window, slot: u32) {
    // SAFETY: only `memory.lua` calls this function. It passes the window of its state, and the window lives as long as
    // the state.
    let window = unsafe { &*window };
    let slot = slot as usize % BATCH_CAPACITY;
    let len = window.len[slot].get() as usize;
    if len == 0 {
        return;
    }
    // SAFETY: a borrowed packet has `len` valid bytes until its borrowing ends, which sets its length to 0.
    let frame = unsafe { std::slice::from_raw_parts(window.data[slot].get(), len) };
    for (to, offset) in window.headers[slot].iter().zip(headers::locate(frame)) {
        to.set(offset);
    }
    window.located[slot].set(1);
}

/// Metadata of one packet.
#[derive(Debug, Clone, Copy)]
pub struct Lent {
    /// Offsets of the packet's headers, in bytes; [`ABSENT`] for missing ones.
    pub headers: [u16; HEADERS],
    /// Index of the packet's stream (from 1), sequence number, and ns from timestamp to arrival; none for a packet
    /// without a timestamp, for which the script reads stream 0.
    pub stamp: Option<(u16, u64, f64)>,
    /// Time of arrival by the clock of timestamps, ns; negative for a packet that is to be sent.
    pub arrived_ns: f64,
    /// Timestamp of the packet by the receiving port, relative to the port's first timestamp, in the port's unit;
    /// negative without one.
    pub port_stamp: f64,
}

/// A Lua state, and its borrowed packets.
pub struct LuaState {
    lua: Lua,
    memory: Table,
    /// The Lua function that makes recorders of values. Like `number` and `numbers`, it uses a memory address, and is
    /// therefore hidden from scripts.
    recorder: mlua::Function,
    number: mlua::Function,
    numbers: mlua::Function,
    window: Rc<Window>,
    ends: Ends,
}

/// Numbers that a script writes, and that any thread may read at the same time. A number is the bits of an `f64`; x86
/// and ARM store and load 8 aligned bytes atomically.
type Cells = Arc<[AtomicU64]>;

/// Cells to which the functions of a state write. The cells live as long as the state, even if no handle to them exists
/// any more.
#[derive(Default)]
struct Kept(Vec<Cells>);

fn cells(n: usize) -> Cells {
    (0..n).map(|_| AtomicU64::new(0.0_f64.to_bits())).collect()
}

/// Reads a cell. Relaxed ordering suffices, because each number is independent of the others.
fn read(cell: &AtomicU64) -> f64 {
    f64::from_bits(cell.load(Ordering::Relaxed))
}

/// A number that a script writes and that any thread may read.
#[derive(Debug, Clone)]
pub struct Number(Cells);

impl Number {
    /// Returns the number's current value.
    pub fn get(&self) -> f64 {
        read(&self.0[0])
    }
}

/// Numbers that a script and its host both read and write, alternately.
#[derive(Debug, Clone)]
pub struct Numbers(Cells);

impl Numbers {
    /// Returns the number at an index.
    ///
    /// # Panics
    /// The index is out of range.
    #[inline]
    pub fn get(&self, at: usize) -> f64 {
        read(&self.0[at])
    }

    /// Sets the number at an index.
    ///
    /// # Panics
    /// The index is out of range.
    #[inline]
    pub fn set(&self, at: usize, value: f64) {
        // Relaxed suffices, because only one thread uses the number.
        self.0[at].store(value.to_bits(), Ordering::Relaxed);
    }
}

/// Values that a script has recorded but not passed on yet; any thread may read them.
#[derive(Debug, Clone)]
pub struct Pending(Cells);

impl Pending {
    /// Returns the current values. They are exact while the script does not run.
    pub fn values(&self) -> impl Iterator<Item = f64> + '_ {
        let n = (read(&self.0[0]) as usize).min(SAMPLES);
        self.0[1..=n].iter().map(read)
    }
}

/// Functions that [`LuaState::samples`] makes.
pub struct Samples {
    /// Records one number.
    pub record: mlua::Function,
    /// Passes on all recorded numbers.
    pub flush: mlua::Function,
    /// Recorded values that have not been passed on yet.
    pub pending: Pending,
}

/// The pointer to a Lua state that another thread may interrupt; none after the state was dropped.
struct Raw {
    state: Option<*mut mlua::lua_State>,
    is_ended: bool,
}

// SAFETY: the pointer is used only under the lock of `Ends`, while the state lives, and only for
// `lua_sethook`, which LuaJIT allows from other threads (lj_record.c, LUAJIT_ENABLE_CHECKHOOK).
unsafe impl Send for Raw {}

/// Stops the script of a Lua state, from any thread.
#[derive(Clone)]
pub struct Ends(Arc<Mutex<Raw>>);

impl Ends {
    fn lock(&self) -> MutexGuard<'_, Raw> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the script fail with "stopped" at its next instruction, and at every later one. A loop that LuaJIT
    /// compiled also stops, if LuaJIT was built with `LUAJIT_ENABLE_CHECKHOOK`.
    pub fn end(&self) {
        self.end_if(|| true);
    }

    /// Stops the script like [`Ends::end`] if `is_wanted` returns true. [`Ends::undo`] is locked out during the call of
    /// `is_wanted`.
    pub fn end_if(&self, is_wanted: impl FnOnce() -> bool) {
        let mut raw = self.lock();
        if let Some(state) = raw.state
            && is_wanted()
        {
            raw.is_ended = true;
            // SAFETY: the pointer is valid, because `LuaState` removes it under this lock before the state is closed.
            // `Raw` explains why another thread may make this call.
            unsafe { ffi::lua_sethook(state, Some(stopped), ffi::LUA_MASKCOUNT, 1) };
        }
    }

    /// Lets the script continue after [`Ends::end`]; the thread that runs the script calls it. Returns true if the
    /// script had been stopped.
    pub fn undo(&self) -> bool {
        let mut raw = self.lock();
        if let (Some(state), true) = (raw.state, raw.is_ended) {
            // SAFETY: the pointer is valid for the reason given in `end_if`.
            unsafe { ffi::lua_sethook(state, None, 0, 0) };
        }
        std::mem::take(&mut raw.is_ended)
    }
}

/// Raises the error that ends a script.
unsafe extern "C-unwind" fn stopped(state: *mut mlua::lua_State, _: *mut ffi::lua_Debug) {
    // SAFETY: Lua calls this function with its own running state, so the error reaches the call that runs the script.
    // Nothing in this frame needs to be dropped.
    unsafe {
        ffi::luaL_where(state, 0);
        ffi::lua_pushstring(state, c"stopped".as_ptr());
        ffi::lua_concat(state, 2);
        ffi::lua_error(state);
    }
}

impl Drop for LuaState {
    fn drop(&mut self) {
        self.ends.lock().state = None;
    }
}

impl LuaState {
    /// Makes a state with Lua's harmless libraries; `trusted` adds those for the file system, other programs and
    /// memory.
    ///
    /// # Errors
    /// Lua reports an error.
    pub fn new(trusted: bool) -> mlua::Result<Self> {
        let mut libraries = StdLib::ALL_SAFE | StdLib::FFI;
        if trusted {
            libraries |= StdLib::ALL;
        }
        // SAFETY: the unsafe libraries are `ffi` and, for a trusted script, `debug`. The code below hides `ffi` from
        // the script, unless the user trusts the script with everything.
        let lua = unsafe { Lua::unsafe_new_with(libraries, LuaOptions::new()) };
        let window = Rc::new(Window::new());
        // As app data, the window lives as long as the Lua state, regardless of other handles to it.
        lua.set_app_data(Rc::clone(&window));
        lua.set_app_data(Kept::default());
        let address = LightUserData(Rc::as_ptr(&window) as *mut c_void);
        let ffi: Table = lua.load("return require 'ffi'").eval()?;
        let memory: Table = lua
            .load(include_str!("memory.lua"))
            .set_name("=taut")
            .call((ffi, address, LightUserData(find_headers as *mut c_void)))?;
        let recorder = memory.get("recorder")?;
        memory.raw_remove("recorder")?;
        let number = memory.get("number")?;
        memory.raw_remove("number")?;
        let numbers = memory.get("numbers")?;
        memory.raw_remove("numbers")?;
        if !trusted {
            hide_unsafe(&lua)?;
        }
        let mut state = std::ptr::null_mut();
        // SAFETY: the closure only copies the pointer.
        unsafe { lua.exec_raw::<()>((), |raw| state = raw)? };
        Ok(Self {
            lua,
            memory,
            recorder,
            number,
            numbers,
            window,
            ends: Ends(Arc::new(Mutex::new(Raw {
                state: Some(state),
                is_ended: false,
            }))),
        })
    }

    /// Returns the underlying Lua state.
    pub fn lua(&self) -> &Lua {
        &self.lua
    }

    /// Returns the functions on borrowed packets that `memory.lua` describes. They are safe with any arguments.
    pub fn memory(&self) -> &Table {
        &self.memory
    }

    /// Returns a handle that stops the state's script from another thread.
    pub fn ends(&self) -> Ends {
        self.ends.clone()
    }

    /// Runs `work` while the script has access to `packets` (at most 64) and may change their lengths. Returns the
    /// result of `work`, a bit for each packet that the script marked with 1, and a bit for each with another mark.
    pub fn lend<T>(
        &self,
        packets: &mut [Packet],
        mut about: impl FnMut(usize, &[u8]) -> Lent,
        work: impl FnOnce() -> T,
    ) -> (T, [u64; 2]) {
        let n = packets.len().min(BATCH_CAPACITY);
        let lent = Returned {
            window: &self.window,
            n,
        };
        for (index, packet) in packets.iter_mut().take(n).enumerate() {
            let Lent {
                headers,
                stamp,
                arrived_ns,
                port_stamp,
            } = about(index, packet.bytes());
            let window = &*self.window;
            for (to, offset) in window.headers[index].iter().zip(headers) {
                to.set(offset);
            }
            window.located[index].set(1);
            let (stream, sequence, latency_ns) = stamp.unwrap_or((0, 0, -1.0));
            window.stream[index].set(i32::from(stream));
            window.sequence[index].set(sequence as f64);
            window.latency_ns[index].set(latency_ns);
            window.arrived_ns[index].set(arrived_ns);
            window.port_stamp[index].set(port_stamp);
            window.room[index].set((packet.len() + packet.tailroom()) as u32);
            window.lend(index, packet);
        }
        let done = work();
        let mut marks = [0; 2];
        for (index, packet) in packets.iter_mut().take(n).enumerate() {
            match self.window.mark[index].get() {
                0 => {}
                1 => marks[0] |= 1 << index,
                _ => marks[1] |= 1 << index,
            }
            resize(packet, self.window.len[index].get());
        }
        drop(lent);
        (done, marks)
    }

    /// Runs `work` while the script has access to the unmarked packets of a batch; `work` gets the number of packets.
    /// The packets' headers are located when the script requests them. Returns the result of `work` and the borrowed
    /// packets; none if the batch has no unmarked packet.
    #[inline]
    pub fn lend_batch<T>(
        &self,
        batch: &mut Batch,
        work: impl FnOnce(usize) -> T,
    ) -> Option<(T, Lending)> {
        let is_marked = batch.is_marked();
        let kept = |index: usize| !is_marked || batch.is_kept(index);
        let (mut places, mut n) = ([0; BATCH_CAPACITY], 0);
        for index in (0..batch.len()).filter(|index| kept(*index)) {
            places[n] = index as u8;
            n += 1;
        }
        if n == 0 {
            return None;
        }
        let window = &*self.window;
        let lent = Returned { window, n };
        let packets = batch.packets_mut();
        for (slot, place) in places[..n].iter().enumerate() {
            window.lend(slot, &mut packets[usize::from(*place)]);
            window.port[slot].set(USUAL_PORT);
            window.located[slot].set(0);
        }
        let done = work(n);
        drop(lent);
        Some((done, Lending { places, n }))
    }

    /// Calls `each` for each packet with a verdict of the script: its index, its mark (0 without one), and its egress
    /// port.
    #[inline]
    pub fn said(&self, lending: &Lending, mut each: impl FnMut(usize, u8, Option<u8>)) {
        for (slot, place) in lending.places().enumerate() {
            let (mark, port) = (self.window.mark[slot].get(), self.window.port[slot].get());
            if mark != 0 || port != USUAL_PORT {
                each(place, mark, (port != USUAL_PORT).then_some(port));
            }
        }
    }

    /// Makes a Lua function that records numbers and passes them to `take` in groups of [`SAMPLES`], and a second
    /// function that passes the remaining numbers to `take`.
    ///
    /// # Errors
    /// Lua reports an error.
    pub fn samples(
        &self,
        mut take: impl FnMut(&mut dyn Iterator<Item = f64>) + 'static,
    ) -> mlua::Result<Samples> {
        let cells = self.cells(1 + SAMPLES)?;
        let pending = Pending(Arc::clone(&cells));
        let address = LightUserData(cells.as_ptr() as *mut c_void);
        let flush = self.lua.create_function_mut(move |_, n: usize| {
            take(&mut cells[1..=n.min(SAMPLES)].iter().map(read));
            Ok(())
        })?;
        let (record, flush) = self.recorder.call((address, SAMPLES, flush))?;
        Ok(Samples {
            record,
            flush,
            pending,
        })
    }

    /// Makes a number, and Lua functions that read and write it.
    ///
    /// # Errors
    /// Lua reports an error.
    pub fn number(&self) -> mlua::Result<(Number, mlua::Function, mlua::Function)> {
        let cells = self.cells(1)?;
        let address = LightUserData(cells.as_ptr() as *mut c_void);
        let (read, write) = self.number.call(address)?;
        Ok((Number(cells), read, write))
    }

    /// Makes `n` numbers, and Lua functions that read and write the number at an index, from 0.
    ///
    /// # Errors
    /// Lua reports an error.
    pub fn numbers(&self, n: usize) -> mlua::Result<(Numbers, mlua::Function, mlua::Function)> {
        let cells = self.cells(n)?;
        let address = LightUserData(cells.as_ptr() as *mut c_void);
        let (get, set) = self.numbers.call((address, n))?;
        Ok((Numbers(cells), get, set))
    }

    /// Allocates memory that lives as long as the state.
    fn cells(&self, n: usize) -> mlua::Result<Cells> {
        let made = cells(n);
        let mut kept = self.lua.app_data_mut::<Kept>();
        let kept = kept
            .as_mut()
            .ok_or_else(|| mlua::Error::runtime("the state has ended"))?;
        kept.0.push(Arc::clone(&made));
        Ok(made)
    }
}

/// Gives a packet the length that the script set. `memory.lua` limits it to what the packet has room for.
fn resize(packet: &mut Packet, len: u32) {
    let len = u16::try_from(len).unwrap_or(u16::MAX);
    match usize::from(len).checked_sub(packet.len()) {
        Some(0) => {}
        Some(more) => {
            packet.append(more as u16);
        }
        None => packet.truncate(len),
    }
}

/// Packets of a batch that were borrowed together.
pub struct Lending {
    places: [u8; BATCH_CAPACITY],
    n: usize,
}

impl Lending {
    /// Returns the indices of the packets in the batch.
    pub fn places(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.places[..self.n]
            .iter()
            .map(|place| usize::from(*place))
    }
}

/// Ends the borrowing of packets, also after a panic.
struct Returned<'a> {
    window: &'a Window,
    n: usize,
}

impl Drop for Returned<'_> {
    fn drop(&mut self) {
        for index in 0..self.n {
            self.window.len[index].set(0);
            self.window.data[index].set(std::ptr::null_mut());
        }
    }
}

/// Removes everything that gives access to files, programs, native code or other memory.
fn hide_unsafe(lua: &Lua) -> mlua::Result<()> {
    lua.load(include_str!("sandbox.lua"))
        .set_name("=taut")
        .exec()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_port::PoolHandle;

    fn lent(_: usize, _: &[u8]) -> Lent {
        Lent {
            arrived_ns: -1.0,
            port_stamp: -1.0,
            headers: [ABSENT; HEADERS],
            stamp: None,
        }
    }

    #[test]
    fn scripts_read_and_write_borrowed_packets_only_during_the_call() {
        let state = LuaState::new(false).unwrap();
        let lua = state.lua();
        lua.globals().set("memory", state.memory()).unwrap();
        let pool = PoolHandle::new(4, false).unwrap();
        let mut batch = Batch::new();
        pool.fill(&mut batch, 2, 60);
        let write =
            lua.load("memory.put32(1, 56, 0xfffefdfc) memory.mark(1) return memory.get16(1, 58)");
        let (read, marks) = state.lend(batch.packets_mut(), lent, || write.eval::<u32>().unwrap());
        assert_eq!((read, marks), (0xfdfc, [0b10, 0]));
        assert_eq!(batch.packets()[1].bytes()[56..], [0xff, 0xfe, 0xfd, 0xfc]);
        // After the call the script has no access.
        assert!(lua.load("return memory.get8(0, 0)").eval::<u32>().is_err());
    }

    #[test]
    fn scripts_cannot_access_bytes_beyond_a_packet() {
        let state = LuaState::new(false).unwrap();
        let lua = state.lua();
        lua.globals().set("memory", state.memory()).unwrap();
        let pool = PoolHandle::new(4, false).unwrap();
        let mut batch = Batch::new();
        pool.fill(&mut batch, 1, 60);
        for call in [
            "memory.get8(0, 60)",
            "memory.get8(0, -1)",
            "memory.get8(0, -1ULL)",
            "memory.get8(0, 0/0)",
            "memory.get8(0, 1/0)",
            "memory.get8(0, {})",
            "memory.get8(0, nil)",
            "memory.get16(0, 59)",
            "memory.put32(0, 57, 1)",
            "memory.put48(0, 55, 1)",
            "memory.get8(1, 0)",
            "memory.get8(-1ULL, 0)",
            "memory.get8(1e300, 60)",
            "memory.bytes(0, 50, 11)",
            "memory.bytes(0, 50, -1)",
            "memory.copy(0, 50, string.rep('x', 11))",
            "memory.copy(0, 50, {})",
            "memory.field(0, 99999999, 0, 1)",
            "memory.get_field8(0, 0, 60)",
            "memory.get_field16(0, 0, -1ULL)",
            "memory.get_field48(0, 0, -2)",
            "memory.put_field32(0, 0, 57, 1)",
            "memory.put_field48(0, 0, 0/0, 1)",
            "memory.put_field8(0, 0, nil, 1)",
            "memory.get_field8(0, 4, 0)",
            "memory.get_field8(1, 0, 0)",
        ] {
            let chunk = lua.load(format!("return {call}"));
            let (result, _) = state.lend(batch.packets_mut(), lent, || chunk.exec());
            assert!(result.is_err(), "{call}");
        }
    }

    #[test]
    fn packet_fields_of_all_widths_are_read_back_unchanged() {
        let state = LuaState::new(false).unwrap();
        let lua = state.lua();
        lua.globals().set("memory", state.memory()).unwrap();
        let pool = PoolHandle::new(4, false).unwrap();
        let mut batch = Batch::new();
        pool.fill(&mut batch, 1, 60);
        // The loop runs often enough to be compiled, with offsets of any alignment.
        let script = "for round = 1, 300 do for _, bits in ipairs { 8, 16, 32, 48 } do\n\
                for _, value in ipairs { 0, 1, 2 ^ (bits - 1), 2 ^ bits - 1, 0xa5 } do\n\
                    local at = 14 + round % 17\n\
                    memory['put' .. bits](0, at, value)\n\
                    assert(memory['get' .. bits](0, at) == value)\n\
                    assert(memory['get_field' .. bits](0, 0, at) == value)\n\
                    memory['put_field' .. bits](0, 0, at, value)\n\
                    assert(memory.get8(0, at + bits / 8 - 1) == value % 256)\n\
                end end end\n\
            memory.put48(0, 14, 0x0102f3f4f5f6)";
        let (done, _) = state.lend(batch.packets_mut(), lent, || lua.load(script).exec());
        done.unwrap();
        let written = &batch.packets()[0].bytes()[14..20];
        assert_eq!(written, [1, 2, 0xf3, 0xf4, 0xf5, 0xf6]);
    }

    #[test]
    fn the_sandbox_offers_no_access_to_the_system() {
        let state = LuaState::new(false).unwrap();
        for way in [
            "io",
            "os.execute",
            "os.remove",
            "os.exit",
            "os.getenv",
            "os.tmpname",
            "require",
            "package",
            "dofile",
            "loadfile",
            "ffi",
            "debug.getupvalue",
            "debug.getregistry",
            "debug.sethook",
            "jit.util",
            "jit.attach",
            "string.dump",
            "getfenv",
            "setfenv",
            "module",
        ] {
            let value: bool = state
                .lua()
                .load(format!(
                    "local ok, v = pcall(function() return {way} end) return not ok or v == nil"
                ))
                .eval()
                .unwrap();
            assert!(value, "{way} is within reach");
        }
        let bytecode: bool = state
            .lua()
            .load("return load('\\27LJ\\2') == nil and loadstring('\\27LJ') == nil and load('return 1')() == 1")
            .eval()
            .unwrap();
        assert!(bytecode, "bytecode can crash the state and must not load");
        let trusted = LuaState::new(true).unwrap();
        let all: bool = trusted
            .lua()
            .load("return io.open ~= nil and require('ffi').cdef ~= nil and os.execute ~= nil")
            .eval()
            .unwrap();
        assert!(all);
    }

    #[test]
    fn another_thread_can_stop_an_endless_script() {
        for body in [
            "while true do end",
            "local n = 0 while true do n = n + 1 end",
            "for i = 1, 1/0 do end",
            "local function f() return f() end f()",
            "while true do pcall(function() while true do end end) end",
            "local c = coroutine.wrap(function() while true do end end) c()",
        ] {
            let state = LuaState::new(false).unwrap();
            let ends = state.ends();
            let ender = std::thread::spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(30));
                ends.end();
            });
            let message = state.lua().load(body).exec().unwrap_err().to_string();
            ender.join().unwrap();
            assert!(message.contains("stopped"), "{body}: {message}");
        }
    }

    #[test]
    fn a_stopped_script_runs_again_after_the_stop_is_undone() {
        let state = LuaState::new(false).unwrap();
        let ends = state.ends();
        let run = |text: &str| state.lua().load(text).exec();
        assert!(!ends.undo());
        ends.end_if(|| false);
        run("for i = 1, 1000 do end").unwrap();
        ends.end_if(|| true);
        assert!(run("for i = 1, 1000 do end").is_err());
        assert!(run("for i = 1, 1000 do end").is_err());
        assert!(ends.undo() && !ends.undo());
        run("for i = 1, 1000 do end").unwrap();
    }

    #[test]
    fn a_script_borrows_the_unmarked_packets_of_a_batch() {
        let state = LuaState::new(false).unwrap();
        let lua = state.lua();
        lua.globals().set("memory", state.memory()).unwrap();
        let pool = PoolHandle::new(4, false).unwrap();
        let mut batch = Batch::new();
        pool.fill(&mut batch, 4, 60);
        for packet in batch.packets_mut() {
            let frame = taut_wire::UdpFlow::default().frame(64).unwrap();
            packet.bytes_mut().copy_from_slice(&frame);
        }
        batch.mark_dropped(1);
        // Headers are found on request, also in packets that the script has changed.
        let script = "memory.mark(0, 2) memory.send(1, 3) memory.put8(2, 12, 0x99)\n\
            return memory.has(0, 4), memory.field(1, 4, 0, 2), memory.has(2, 4), memory.len(3)";
        let work = |n: usize| {
            assert_eq!(n, 3);
            let said: (bool, u32, bool, u32) = lua.load(script).eval().unwrap();
            assert_eq!(said, (true, 34, false, 0));
        };
        let ((), lending) = state.lend_batch(&mut batch, work).unwrap();
        let mut said = Vec::new();
        state.said(&lending, |place, mark, port| said.push((place, mark, port)));
        assert_eq!(said, [(0, 2, None), (2, 0, Some(3))]);
        // Verdicts apply to one batch only, and access ends with the call.
        assert!(lua.load("return memory.get8(0, 0)").eval::<u32>().is_err());
        let ((), lending) = state.lend_batch(&mut batch, |_| ()).unwrap();
        state.said(&lending, |place, _, _| panic!("{place}"));
        (0..4).for_each(|index| batch.mark_dropped(index));
        assert!(state.lend_batch(&mut batch, |_| ()).is_none());
    }

    #[test]
    fn samples_arrive_in_order_and_a_flush_delivers_buffered_samples() {
        let state = LuaState::new(false).unwrap();
        let taken = Rc::new(Cell::new((0_u64, 0.0)));
        let told = Rc::clone(&taken);
        let Samples {
            record,
            flush,
            pending,
        } = state
            .samples(move |values| {
                for value in values {
                    let (n, last) = told.get();
                    assert!(value > last);
                    told.set((n + 1, value));
                }
            })
            .unwrap();
        state.lua().globals().set("record", record).unwrap();
        state
            .lua()
            .load("for i = 1, 2500 do record(i) end")
            .exec()
            .unwrap();
        assert_eq!(taken.get(), (2048, 2048.0));
        assert!(pending.values().eq((2049..=2500).map(f64::from)));
        flush.call::<()>(()).unwrap();
        assert_eq!(taken.get(), (2500, 2500.0));
        assert_eq!(pending.values().count(), 0);
    }

    #[test]
    fn lua_and_rust_share_numbers_and_invalid_indexes_are_refused() {
        let state = LuaState::new(false).unwrap();
        let (numbers, get, set) = state.numbers(3).unwrap();
        state.lua().globals().set("get", get).unwrap();
        state.lua().globals().set("set", set).unwrap();
        numbers.set(1, 0.5);
        let run = |text: &str| state.lua().load(text).exec();
        // The loop runs often enough to be compiled.
        run("for i = 1, 300 do set(2, get(1) + i) end").unwrap();
        assert_eq!([0, 1, 2].map(|at| numbers.get(at)), [0.0, 0.5, 300.5]);
        run("assert(get(2.9) == 300.5)").unwrap();
        for place in [
            "3", "-1", "-0.1", "0/0", "1/0", "nil", "'1'", "{}", "1e300", "3ULL",
        ] {
            assert!(run(&format!("get({place})")).is_err(), "{place}");
            assert!(run(&format!("set({place}, 1)")).is_err(), "{place}");
        }
        assert!(run("set(0, {})").is_err());
    }

    #[test]
    fn other_threads_read_numbers_that_a_running_script_updates() {
        let state = LuaState::new(false).unwrap();
        let (number, read, write) = state.number().unwrap();
        state.lua().globals().set("read", read).unwrap();
        state.lua().globals().set("write", write).unwrap();
        let seen = std::thread::spawn(move || {
            while number.get() < 100.0 {
                std::thread::yield_now();
            }
            number
        });
        let count = state
            .lua()
            .load("for _ = 1, 300 do write(read() + 0.5) end");
        count.exec().unwrap();
        assert_eq!(seen.join().unwrap().get(), 150.0);
        // A script may pass any value.
        for value in ["nil", "{}", "'x'", "print"] {
            let wrong = state.lua().load(format!("write({value})")).exec();
            assert!(wrong.is_err(), "{value}");
        }
    }
}
