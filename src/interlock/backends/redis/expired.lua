-- Keys that have expired, with their newest entries' first 16 bytes. ARGV 1 limit
-- answer: {0, meta, position, {key, version ...}} | {3, ''}
local call, D = redis.call, KEYS[1]
local r = call('HMGET', D, 's', 'm')
if not r[2] then return {3, ''} end
local time, out = call('TIME'), {}
local keys = call('ZRANGEBYSCORE', KEYS[5], '-inf', time[1] * 1000000 + time[2], 'LIMIT', 0, ARGV[1])
for j = 1, #keys do
  local e = call('HGET', D, keys[j])
  if e then
    out[#out + 1] = keys[j]
    out[#out + 1] = string.sub(e, 1, 16)
  end
end
return {0, r[2], (struct.unpack('>I8', r[1])), out}
