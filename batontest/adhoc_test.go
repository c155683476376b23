package batontest
import ("testing";"net";"os/exec";"time";"fmt")
func BenchmarkCompare(b *testing.B) {
	cmd := exec.Command("redis-server", "--port", "7901", "--save", "", "--appendonly", "no"); cmd.Start(); defer func(){cmd.Process.Kill(); cmd.Wait()}()
	time.Sleep(300*time.Millisecond)
	s := NewServer(); defer s.Close()
	r := NewRelay("127.0.0.1:7901"); defer r.Close()
	for _, sh := range [][2]int{{1,1},{1,64},{64,1},{4,16}} {
	for _, v := range [][2]string{{"redis","127.0.0.1:7901"},{"server",s.Addr()},{"relay",r.Addr()}} {
		b.Run(fmt.Sprintf("%dx%d/%s",sh[0],sh[1],v[0]), func(b *testing.B){ benchPipeline(b, func()(net.Conn,error){return net.Dial("tcp",v[1])}, sh[0],sh[1]) })
	}}
}
