-- Compares the clock of the receiving port's timestamps with the processor's, once an interval, as MoonGen's drift does
-- for the clocks of two cards. The port needs timestamps in nanoseconds, such as --port af_packet:eth1,stamps=kernel
--
--   taut script examples/lua/clock_drift.lua --port SPEC --port SPEC -- [SECONDS] [INTERVAL]

local seconds, interval = tonumber(taut.args[1] or "10"), tonumber(taut.args[2] or "1")
local stamped, unstamped = taut.counter("stamped"), taut.counter("without a stamp of the port")
local first, least, since

-- The least difference of an interval is that of the packet that was read soonest after its arrival.
local function close(now)
    if least then
        first = first or { least, now }
        local elapsed = now - first[2]
        print(string.format("difference %.0f ns, drift %.3f us/s", least - first[1],
            elapsed > 0 and (least - first[1]) / elapsed / 1e3 or 0))
    end
    least, since = nil, now
end

taut.run {
    stream = taut.stream { size = 84 }, rate = 10000, seconds = seconds,
    on_receive = function(batch)
        for _, packet in ipairs(batch) do
            local now = packet.arrived_ns / 1e9
            since = since or now
            if packet.port_stamp then
                local difference = packet.arrived_ns - packet.port_stamp
                least = math.min(least or difference, difference)
                stamped:add()
            else
                unstamped:add()
            end
            if now - since >= interval then
                close(now)
            end
        end
    end,
}
if stamped.value == 0 then
    print("the receiving port has no timestamps of its own: see its option stamps")
end
