//! The packet memory of a worker's DPDK ports: one pool of mbufs (DPDK's packet buffers), and the record of mbufs that
//! packets use.

use super::environment::{Environment, environment};
use super::reason::reason;
use crate::{PoolHandle, PortError};
use std::cell::OnceCell;
use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The number of mbufs in addition to those in the ports' rings: for batches in progress, transmit buffers and caches.
const MBUF_RESERVE: u32 = 1024;

/// The distance in bytes between the addresses of consecutive slot numbers. Every mbuf is aligned to this distance, so
/// that its address gives its slot number.
const SLOT_BYTES: u64 = 64;

/// The memory that the DPDK ports of one worker share; the port that is opened first makes it.
#[derive(Default)]
pub(crate) struct Shared {
    made: OnceCell<Memory>,
}

/// A handle on the packet memory of a worker's DPDK ports.
#[derive(Clone)]
pub(super) struct Memory {
    /// Record of the mbufs that packets use. It keeps the pool alive.
    pub(super) ledger: PoolHandle,
    pub(super) pool: Arc<MbufPool>,
}

impl Shared {
    /// Returns the memory for the calling thread. It has enough mbufs for `in_rings` entries in the rings of all ports,
    /// so that no port waits for mbufs that another port uses.
    pub(super) fn memory(&self, in_rings: u32) -> Result<Memory, PortError> {
        if let Some(memory) = self.made.get() {
            return Ok(memory.clone());
        }
        let mbufs = in_rings + MBUF_RESERVE;
        let pool = Arc::new(MbufPool::new(environment()?, mbufs)?);
        let memory = Memory {
            ledger: PoolHandle::ledger_keeping(mbufs, Box::new(Arc::clone(&pool))),
            pool,
        };
        Ok(self.made.get_or_init(|| memory).clone())
    }
}

impl Memory {
    /// Returns the mbufs of dropped packets to their pool.
    #[inline(always)]
    pub(super) fn give_back(&self) {
        let environment = self.pool.environment;
        self.ledger.drain_all_returned(|slots| {
            // SAFETY: the ledger's slots are the numbers of mbufs that were received and that no packet uses any more;
            // each is in the list once.
            unsafe {
                (environment.shim.give_back)(environment.base, slots.as_ptr(), slots.len());
            }
        });
    }
}

/// A pool of mbufs.
pub(super) struct MbufPool {
    pub(super) environment: &'static Environment,
    pub(super) pool: *mut c_void,
    pub(super) mbufs: u32,
}

// SAFETY: only DPDK's own calls change the memory behind the pointer. Any number of threads may make these calls at the
// same time, because all pools made here have rings for several producers and consumers.
unsafe impl Send for MbufPool {}
// SAFETY: as above.
unsafe impl Sync for MbufPool {}

/// The pools in use, and the pools whose worker has ended while other workers may still have mbufs of them (`net_ring`
/// passes mbufs from one worker to another).
struct Pools {
    alive: usize,
    /// Addresses of the pools whose worker has ended.
    left_behind: Vec<usize>,
}

static POOLS: Mutex<Pools> = Mutex::new(Pools {
    alive: 0,
    left_behind: Vec::new(),
});

impl MbufPool {
    fn new(environment: &'static Environment, mbufs: u32) -> Result<Self, PortError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let shim = environment.shim;
        let what = format!("making {mbufs} DPDK packet buffers");
        let name = format!("taut-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let name =
            CString::new(name).map_err(|e| PortError::system(&what, std::io::Error::other(e)))?;
        let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the environment is made, the name is a C string, and the lock excludes other threads.
        let pool = unsafe { (shim.make_mempool)(name.as_ptr(), mbufs) };
        if pool.is_null() {
            let why = reason(&shim.words(), -libc::ENOMEM);
            let needs = if environment.on_huge_pages {
                format!(
                    "more free huge pages, or a smaller ring= ({why}): echo 512 >/proc/sys/vm/nr_hugepages"
                )
            } else {
                format!("a smaller ring= ({why})")
            };
            return Err(PortError::missing(what, needs));
        }
        // SAFETY: a pool that was just made.
        let top = unsafe { (shim.mempool_top)(pool) };
        if (top - environment.base) as u64 / SLOT_BYTES > u64::from(u32::MAX) {
            // SAFETY: nobody has an mbuf of it yet.
            unsafe { (shim.free_mempool)(pool) };
            return Err(PortError::missing(
                what,
                "packet memory on a lower NUMA node: this one is more than 256 GiB from the first",
            ));
        }
        pools.alive += 1;
        Ok(Self {
            environment,
            pool,
            mbufs,
        })
    }
}

impl Drop for MbufPool {
    fn drop(&mut self) {
        let shim = self.environment.shim;
        let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
        pools.alive -= 1;
        pools.left_behind.push(self.pool as usize);
        let last = pools.alive == 0;
        pools.left_behind.retain(|&pool| {
            let pool = pool as *mut c_void;
            // SAFETY: a pool that was not freed yet.
            let unused = last || unsafe { (shim.mempool_in_use)(pool) } == 0;
            if unused {
                // SAFETY: every port that used its mbufs is closed, and every packet is dropped. For this worker that
                // holds because the pool is dropped now; for other workers, because none is left or all mbufs are back.
                unsafe { (shim.free_mempool)(pool) };
            }
            !unused
        });
    }
}
