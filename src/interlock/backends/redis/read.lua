-- Entries of several keys. ARGV 1 identity or '' 2 snapshot or '' 3.. keys
-- answer: {0, meta, position, at, superseded, entries} | {3, meta} | {4} | {8} overwritten quietly
local call, sub, byte, pack, from, A, D = redis.call, string.sub, string.byte, struct.pack, struct.unpack, ARGV, KEYS[1]
--@ past.lua
local r = call('HMGET', D, 's', 'm', unpack(A, 3))
local meta = r[2]
if not meta or (A[1] ~= '' and sub(meta, 1, 16) ~= A[1]) then return {3, meta or ''} end
local position, snapshot, superseded, out = from('>I8', r[1]), tonumber(A[2]), 0, {}
if snapshot then
  if snapshot > position then return {3, meta} end
  if snapshot < from('>I8', meta, 17) then return {4} end
end
for i = 3, #A do
  local k, e = A[i], r[i]
  if e and snapshot and from('>I8', e) > snapshot then
    e = shown(k, e, snapshot)
    if e == nil then return {8} end
    superseded = 1
  end
  out[i - 2] = whole(k, e)
end
return {0, meta, position, clock(r[1]), superseded, out}
