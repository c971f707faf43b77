-- Throughput as RFC 2544 (section 26.1) defines it: finds the highest rate without loss for each frame size by binary
-- search, as MoonGen's rfc2544 throughput test does. `taut bench` does this with more care.
--
--   taut script examples/lua/rfc2544.lua --port SPEC [--port SPEC] -- [MOST] [SECONDS] [STEPS] [SIZE ...]

local most = tonumber(taut.args[1] or "20e6")
local seconds = tonumber(taut.args[2] or "2")
local steps = tonumber(taut.args[3] or "8")
local sizes = { unpack(taut.args, 4) }
if #sizes == 0 then
    sizes = { "64", "128", "256", "512", "1024", "1280", "1518" }
end

-- Returns true if all packets were sent and came back; nil if the trial was interrupted.
local function passes(stream, rate)
    local r = taut.run { stream = stream, rate = rate, seconds = seconds, warm_up = seconds / 10 }
    if r.stopped then
        return nil
    end
    return r.unsent == 0 and r.lost == 0 and r.refused == 0 and r.received > 0
end

for _, size in ipairs(sizes) do
    local stream = taut.stream { size = size }
    local low, high, tried = 0, most, 0
    while tried < steps and taut.running() do
        local rate = (low + high) / 2
        local passed = passes(stream, rate)
        if passed == nil then
            break
        end
        tried = tried + 1
        if passed then
            low = rate
        else
            high = rate
        end
    end
    if tried > 0 then
        print(string.format("%4s bytes: %.3f Mpkt/s without loss (%.3f Mpkt/s lost some or could not be sent)%s",
            size, low / 1e6, high / 1e6, tried < steps and string.format(", after %d of %d steps", tried, steps) or ""))
    end
    if tried < steps then
        print("interrupted: sizes that are not shown were not tried")
        break
    end
end
