-- Makes a histogram of the sizes of the packets that arrive, check sequence included, as MoonGen's
-- rx-pkts-distribution does. (Printed as times, a byte is a nanosecond.)
--
--   taut script examples/lua/packet_sizes.lua --port SPEC -- [SECONDS] [INTERVAL]

local seconds, interval = tonumber(taut.args[1] or "60"), tonumber(taut.args[2] or "10")
local sizes, packets, bytes = taut.histogram("sizes"), taut.counter("packets"), taut.counter("bytes")
local shown = taut.now()

local function show()
    local parts = {}
    for _, percent in ipairs { 0, 25, 50, 75, 100 } do
        parts[#parts + 1] = string.format("%d %% up to %d", percent, sizes:percentile(percent) or 0)
    end
    print(string.format("%d packets, mean %.1f bytes; %s", packets.value, bytes.value / math.max(1, packets.value),
        table.concat(parts, ", ")))
end

taut.receive(taut.port(1), function(batch)
    for _, packet in ipairs(batch) do
        local size = packet.len + 4
        sizes:record(size)
        bytes:add(size)
    end
    packets:add(batch.n)
    if taut.now() - shown >= interval then
        shown = taut.now()
        show()
    end
end, { seconds = seconds })
show()
